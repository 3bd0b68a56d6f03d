"""Judging recorded episodes: by code in the sandbox, by eye, and both together."""
