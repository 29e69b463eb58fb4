"""Packs as Parquet files, written and read."""
