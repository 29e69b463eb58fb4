"""Bytes by range from the Hub, a URL or a folder."""
