"""Who trains."""
