"""Packs to the batches of a rank."""
