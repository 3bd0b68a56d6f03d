"""Episodes of a model file's environment, stepped in the sandbox for a process outside of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
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
MOST_SCRIPTS = 1_000


def play_in_sandbox(
    config: TrainConfig, act: Policy | str, *, rows: int, episodes: int, seed: int
) -> Iterator[RecordedEpisode]:
    """Play episodes as `play_episodes` does; ConfigurationError where they cannot be played."""
    task = {
        "act": act if isinstance(act, str) else None,
        "rows": rows,
        "episodes": episodes,
        "seed": seed,
    }
    played = _play(config, task, None if isinstance(act, str) else act, episodes)
    for _, (_, episode) in zip(range(episodes), played, strict=True):
        yield episode


def play_scripts_in_sandbox(
    config: TrainConfig, asked: Mapping[str, Any], *, seed: int
) -> Iterator[tuple[str, RecordedEpisode]]:
    """Play scripted motions as `play_scripts_here` does."""
    yield from _play(config, {"scripts": dict(asked), "seed": seed}, None, MOST_SCRIPTS)


def _play(
    config: TrainConfig, task: Mapping[str, Any], policy: Policy | None, most: int
) -> Iterator[tuple[str, RecordedEpisode]]:
    with tempfile.TemporaryDirectory(prefix="p2p-played-") as name:
        folder = Path(name)
        if policy is not None:
            policy.save(folder / "policy.safetensors")
        payload = {"folder": name, "config": config.model_dump(mode="json"), **task}
        names: list[str] = []
        ended: list[bool] = []

        def take(message: dict[str, Any], _: SandboxedProcess) -> None:
            if "end" in message:
                ended.append(True)
            else:
                names.append(str(message.get("name", "")))

        sandbox = surroundings(config, folder).sandbox(
            folder,
            stall_seconds=STALL_SECONDS,
            wall_seconds=longest_evaluation_s(config, most),
            disk_bytes=2 << 30,
            max_lines=most + 10,
        )
        process = run_worker(WORKER, payload, sandbox, read=read_message, on_message=take)
        end = process.wait()
        if not ended:
            raise ConfigurationError(f"{config.env_id} cannot be played: {end.message}")
        for i, told in enumerate(names):
            arrays = read_arrays(process.folder, f"episode_{i}.npz", max_bytes=MAX_BYTES)
            yield told, RecordedEpisode.from_arrays(arrays)
