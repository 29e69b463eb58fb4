"""The Spark job: which shards there are, what workers do, what comes back."""
