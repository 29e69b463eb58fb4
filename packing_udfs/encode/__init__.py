"""A conversation to token ids, exactly as its processor makes them."""
