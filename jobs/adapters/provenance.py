"""Columns that say where a row came from."""

FILE, ROW = "_file", "_row"
