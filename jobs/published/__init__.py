"""Existing packed datasets: read, checked, shown, and samples taken out."""
