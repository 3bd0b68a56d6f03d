"""Isaac Lab as a SimulatorBackend: facts come off the live environment, in its own Python."""

from __future__ import annotations

from p2p.training.engines.facts import EngineBackend

__all__ = ["IsaacLabBackend"]


class IsaacLabBackend(EngineBackend):
    """Bodies, joints and quantities are MuJoCo's: quaternions are (w, x, y, z), frames the world's.

    Isaac Lab itself has (x, y, z, w), and every environment at an origin of its own.
    """

    def __init__(self) -> None:
        super().__init__("isaaclab")
