"""Plays episodes in the sandbox, and leaves them in the folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(payload: dict[str, Any], send: Callable[[bytes], None]) -> None:
    """Play what the payload says, with the folder's policy or a behaviour."""
    from p2p.config import TrainConfig
    from p2p.training.evaluation import play_here
    from p2p.training.policies.policy import Policy

    folder = Path(payload["folder"])
    act: Any = payload["act"] or Policy.load(folder / "policy.safetensors")
    config = TrainConfig.model_validate(payload["config"])
    played = play_here(
        config, act, rows=payload["rows"], episodes=payload["episodes"], seed=payload["seed"]
    )
    for i, episode in enumerate(played):
        episode.save(folder / f"episode_{i}.npz")
        send(json.dumps({"episode": i}).encode())
