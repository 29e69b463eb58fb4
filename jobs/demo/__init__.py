"""The demo: a small source, its processor, and what `make run` shows of both."""
