"""`python -m p2p.executor`: one training run from the command line."""
