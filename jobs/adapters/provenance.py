"""Columns that say where a row came from."""

__all__ = ["FILE", "ROW"]

FILE, ROW = "_file", "_row"
