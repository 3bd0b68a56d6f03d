"""Plays episodes in the sandbox, and leaves them in the folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2p.config import TrainConfig
    from p2p.training.trajectory import RecordedEpisode


def main(payload: dict[str, Any], send: Callable[[bytes], None]) -> None:
    """Play what the payload says; a line with the name of each episode, and one at the end."""
    from p2p.config import TrainConfig

    folder, config = Path(payload["folder"]), TrainConfig.model_validate(payload["config"])
    for i, (name, episode) in enumerate(_episodes(folder, config, payload)):
        episode.save(folder / f"episode_{i}.npz")
        send(json.dumps({"name": name}).encode())
    send(json.dumps({"end": True}).encode())


def _episodes(
    folder: Path, config: TrainConfig, payload: dict[str, Any]
) -> Iterator[tuple[str, RecordedEpisode]]:
    """Of scripted motions by name, or with the folder's policy or a behaviour."""
    from p2p.training.evaluation import play_here
    from p2p.training.policies.policy import Policy
    from p2p.training.scripted import play_scripts_here

    seed = payload["seed"]
    if "scripts" in payload:
        yield from play_scripts_here(config, payload["scripts"], seed=seed)
        return
    act: Any = payload["act"] or Policy.load(folder / "policy.safetensors")
    rows, episodes = payload["rows"], payload["episodes"]
    for episode in play_here(config, act, rows=rows, episodes=episodes, seed=seed):
        yield "", episode
