"""Isaac Lab as a SimulatorBackend: facts come off the live environment, in its own Python."""

from p2p.training.engines.facts import IsaacLabBackend

__all__ = ["IsaacLabBackend"]
