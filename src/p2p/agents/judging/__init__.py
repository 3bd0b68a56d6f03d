"""Judging recorded episodes: by code in the jail, by eye, and both together."""
