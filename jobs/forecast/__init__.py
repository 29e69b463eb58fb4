"""What a run will do, estimated from a sample of the rows."""
