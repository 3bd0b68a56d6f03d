"""Calling, checking and describing a reward function."""
