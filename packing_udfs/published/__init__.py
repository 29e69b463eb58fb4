"""Facts about stored packs."""
