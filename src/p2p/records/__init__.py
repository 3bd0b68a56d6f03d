"""The folders of sessions, iterations and runs: the only code that knows their paths."""
