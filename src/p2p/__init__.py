"""Train control policies from words."""

__version__ = "0.1.0"
