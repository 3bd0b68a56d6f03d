"""Many environments stepped together: MuJoCo in batches, and any Gymnasium one in a loop."""
