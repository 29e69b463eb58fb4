"""The Spark job: which shards there are, what workers do, and what comes back."""
