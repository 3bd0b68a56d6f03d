"""Ids of engines that cannot run here are refused by every command, before the engine is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import Cli

REFUSED = {
    "Isaac-Cartpole-Camera": "a policy that sees images",
    "Isaac-Cartpole-Camera-Direct": "a policy that sees images",
    "Isaac-Pendulum-MARL-Direct": "a trainer for several agents in one environment",
    "IsaacContrib-Factory-GearMesh-Direct": "PhysX",
    "Mjlab-Tracking-Flat-Unitree-G1": "a motion file",
}


@pytest.mark.parametrize("env_id", REFUSED)
def test_every_command_says_in_one_line_why_an_id_cannot_run(
    p2p: Cli, tmp_path: Path, batched_reward: str, env_id: str
) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text(batched_reward)
    for command in (
        ("envs", env_id),
        ("check", reward, "--env", env_id),
        ("train", reward, "--env", env_id),
        ("run", "keep still", "--env", env_id),
    ):
        outcome = p2p(*command)
        assert outcome.status == 2, command
        assert f"{env_id} cannot run here: it needs {REFUSED[env_id]}" in outcome.error, command
    assert not list(tmp_path.glob("runs/*"))
