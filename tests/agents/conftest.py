"""What several tests of the agents look at."""

from __future__ import annotations

import pytest
from recorded_hopper import Recorded, hopper_policy

from p2p.training.policies.policy import Policy


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("recorded"), episodes=3)


@pytest.fixture(scope="session")
def trained_policy() -> Policy:
    """A policy for Hopper with small actions."""
    return hopper_policy()
