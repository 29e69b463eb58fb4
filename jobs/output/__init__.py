"""The commit protocol: how the packs of a run become visible together, on the Hub or in a folder."""
