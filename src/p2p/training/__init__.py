"""Environments, rewards and PPO: from a reward file to a saved policy."""
