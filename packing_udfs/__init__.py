"""Packs and reads vision-language training data: pure functions of Arrow, pandas and NumPy; no Spark."""
