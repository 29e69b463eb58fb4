"""Pure packing: Arrow, pandas and numpy in, the same out. Nothing here imports pyspark."""
