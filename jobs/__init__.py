"""Commands over Spark and the Hub: each stands here and is a thin `main` over the folder that does its work."""
