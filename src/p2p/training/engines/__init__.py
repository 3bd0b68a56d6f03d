"""Simulators with environments of their own: a table, their installation, and one adapter each."""
