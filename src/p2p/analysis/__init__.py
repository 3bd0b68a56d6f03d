"""What the curves and trajectories of a run say, as pure functions on arrays."""
