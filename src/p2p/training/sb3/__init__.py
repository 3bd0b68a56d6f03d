"""Stable-Baselines3's PPO, fitted to our environments, metrics and files."""
