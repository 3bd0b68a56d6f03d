"""Episodes without a reward, played in an engine's own process."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2p.sandbox import read_arrays
from p2p.training.engines.facts import run_child
from p2p.training.trajectory import MAX_BYTES, RecordedEpisode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from p2p.config import TrainConfig
    from p2p.training.policies.policy import Policy


def play_in_engine(
    config: TrainConfig,
    act: Policy | str,
    *,
    rows: int,
    episodes: int,
    seed: int,
) -> Iterator[RecordedEpisode]:
    """Play episodes as `play_episodes` does; a child of the engine steps."""
    with tempfile.TemporaryDirectory(prefix="p2p-played-") as name:
        place = Path(name)
        files: list[Path] = []

        def keep(folder: Path) -> None:
            for i in range(episodes):
                file = f"episode_{i}.npz"
                arrays = read_arrays(folder, file, max_bytes=MAX_BYTES)
                RecordedEpisode.from_arrays(arrays).save(place / file)
                files.append(place / file)

        def prepare(folder: Path) -> None:
            if not isinstance(act, str):
                act.save(folder / "policy.safetensors")

        play: dict[str, Any] = {
            "config": config.model_dump(mode="json"),
            "act": act if isinstance(act, str) else None,
            "rows": rows,
            "episodes": episodes,
            "seed": seed,
        }
        run_child(
            config.engine,
            play=play,
            prepare=prepare,
            keep=keep,
            device=config.device,
        )
        for file in files:
            yield RecordedEpisode.load(file)
