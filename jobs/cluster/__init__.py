"""A Spark cluster on this machine, and the archive for workers elsewhere."""
