"""Train language policies by self-play."""

__version__ = "0.1.0"
