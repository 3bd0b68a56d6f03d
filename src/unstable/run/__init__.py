"""A run from its configuration: its parts, its folder, its states, and how it goes."""
