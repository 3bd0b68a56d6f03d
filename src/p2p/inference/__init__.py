"""How models are asked: made, metered, recorded and bounded in one place."""
