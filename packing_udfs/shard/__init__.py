"""A shard of samples to packs: the body of the grouped pandas UDF, without Spark."""
