"""The commit protocol: how packs become visible, all at once, on the Hub or in a folder."""
