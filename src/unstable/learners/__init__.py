"""Learners."""
