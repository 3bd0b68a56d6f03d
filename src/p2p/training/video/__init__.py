"""Recorded episodes as video, drawn in a process of their own."""
