"""Evaluation of a run on Isaac Lab, in a sandboxed process of the engine's own Python."""

from p2p.training.replay import NoSuchCheckpoint, ReplayResult, choose_step, replay

__all__ = ["NoSuchCheckpoint", "ReplayResult", "choose_step", "replay"]
