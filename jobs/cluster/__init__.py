"""Spark on this machine and for workers elsewhere."""
