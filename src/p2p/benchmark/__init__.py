"""Suites of prompts: run them, measure what came of them, and report."""
