"""The commands of `p2p`, one module per subject."""
