"""Train control policies from words."""

import unstable as unstable  # first: it sees to it what our programs import

__version__ = "0.1.0"
