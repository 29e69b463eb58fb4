"""Input: sources pinned to a state, read, and counted by other code than reads them."""
