"""What a run looks like: read from its parts or its files, drawn in a terminal."""
