"""TextArena's games, each with its own random state, and players that need no model."""
