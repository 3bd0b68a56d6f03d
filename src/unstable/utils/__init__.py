"""Small things that several parts need."""
