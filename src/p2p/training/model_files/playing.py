"""Episodes of a model file's environment, stepped in the sandbox for a process outside of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2p.config import ConfigurationError
from p2p.sandbox import read_arrays, read_message, run_worker
from p2p.training.engines.facts import surroundings
from p2p.training.trainer_messages import longest_evaluation_s
from p2p.training.trajectory import MAX_BYTES, RecordedEpisode

if TYPE_CHECKING:
    from p2p.config import TrainConfig
    from p2p.sandbox import SandboxedProcess
    from p2p.training.policies.policy import Policy

WORKER = "p2p.training.model_files.player"
STALL_SECONDS = 300.0


def play_in_sandbox(
    config: TrainConfig, act: Policy | str, *, rows: int, episodes: int, seed: int
) -> Iterator[RecordedEpisode]:
    """Play episodes as `play_episodes` does; ConfigurationError where they cannot be played."""
    with tempfile.TemporaryDirectory(prefix="p2p-played-") as name:
        folder = Path(name)
        if not isinstance(act, str):
            act.save(folder / "policy.safetensors")
        payload = {
            "folder": name,
            "config": config.model_dump(mode="json"),
            "act": act if isinstance(act, str) else None,
            "rows": rows,
            "episodes": episodes,
            "seed": seed,
        }
        done: list[dict[str, Any]] = []

        def take(message: dict[str, Any], _: SandboxedProcess) -> None:
            done.append(message)

        sandbox = surroundings(config, folder).sandbox(
            folder,
            stall_seconds=STALL_SECONDS,
            wall_seconds=longest_evaluation_s(config, episodes),
            disk_bytes=2 << 30,
            max_lines=episodes + 10,
        )
        process = run_worker(WORKER, payload, sandbox, read=read_message, on_message=take)
        end = process.wait()
        if len(done) < episodes:
            raise ConfigurationError(f"{config.env_id} cannot be played: {end.message}")
        for i in range(episodes):
            arrays = read_arrays(process.folder, f"episode_{i}.npz", max_bytes=MAX_BYTES)
            yield RecordedEpisode.from_arrays(arrays)
