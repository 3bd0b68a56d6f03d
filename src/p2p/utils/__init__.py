"""Small things that every layer uses."""
