"""The seam between training and physics: one backend for each engine."""

from __future__ import annotations

from p2p.training.env_spec import (
    ENGINES,
    SimulatorBackend,
    UnsupportedEnvironmentError,
    get_simulator,
)

__all__ = ["ENGINES", "SimulatorBackend", "UnsupportedEnvironmentError", "get_simulator"]
