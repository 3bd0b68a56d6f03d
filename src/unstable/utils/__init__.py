"""Shared functions, by subject."""
