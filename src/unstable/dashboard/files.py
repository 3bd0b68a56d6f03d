"""The view of a run from its files: it may be running, or have ended long ago."""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unstable.dashboard.view import SourceError, View, local_gpus, make_view
from unstable.evaluation import Evaluation
from unstable.run.folder import RunFolder

INTERFACE, METRICS, GAMES = "interface.json", "metrics.jsonl", "eval_data/games.jsonl"
GAME_FIELDS = {"ckpt_uid", "env_id", "opponent", "rewards", "player_id", "invalid"}
RECENT = 180.0
"""Seconds after its last write for which a run is taken to use this machine's GPUs."""


class Tail:
    """Reads a file of JSON lines, each line once, while others append to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._file: tuple[int, int] | None = None

    def read(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether the file was replaced, so that all earlier lines are void; and the new lines.

        A last line that is not finished is left for the next time.
        """
        try:
            with self.path.open("rb") as stream:
                stat = os.fstat(stream.fileno())
                file = (stat.st_dev, stat.st_ino)
                replaced = self._file not in (None, file) or stat.st_size < self._offset
                self._file = file
                stream.seek(0 if replaced else self._offset)
                text = stream.read()
        except FileNotFoundError:
            replaced, self._offset, self._file = self._offset > 0, 0, None
            return replaced, []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset = len(whole) + (0 if replaced else self._offset)
        return replaced, [record for line in whole.splitlines() if (record := _record(line))]


class RunFiles:
    """A source of views.

    The learner's curves and the evaluation games are on disk at once; the rest is as old as the
    tracker's last flush.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        if not any((run / name).exists() for name in (INTERFACE, METRICS)):
            raise SourceError(f"{run} is no run: it has neither {INTERFACE} nor {METRICS}")
        self._metrics, self._games = Tail(run / METRICS), Tail(run / GAMES)
        self._learner: dict[str, list[float | None]] = {}
        self._step = 0
        self._evaluations: dict[tuple[str, str, str], Evaluation] = {}

    def fetch(self) -> View:
        try:
            info = self._interface()
            self._read_metrics()
            self._read_games()
            written = max(
                (path.stat().st_mtime for path in self._paths() if path.exists()), default=None
            )
        except OSError as error:
            raise SourceError(f"{self.run}: {error}") from error
        if written is None:
            raise SourceError(f"{self.run} is gone")
        info["learner"] = self._learner
        info["step"] = max(self._step, int(info.get("step") or 0))
        info["evaluation"] = [e.summary() for e in self._evaluations.values()]
        info.setdefault("run_name", self.run.name)
        used_now = info.get("gpu_tok_s") and time.time() - written < RECENT
        status = RunFolder(self.run).status()
        return make_view(
            info,
            written=written,
            gpus=local_gpus() if used_now else (),
            status=None if status is None else asdict(status),
        )

    def close(self) -> None:
        """Nothing is held."""

    def _paths(self) -> list[Path]:
        return [self.run / name for name in (INTERFACE, METRICS, GAMES)]

    def _interface(self) -> dict[str, Any]:
        path = self.run / INTERFACE
        try:
            info = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:  # before the tracker's first flush
            return {}
        except ValueError as error:
            raise SourceError(f"{path} is not JSON: {error}") from error
        if not isinstance(info, dict):
            raise SourceError(f"{path} does not hold what a tracker writes")
        return info

    def _read_metrics(self) -> None:
        replaced, lines = self._metrics.read()
        if replaced:
            self._learner, self._step = {}, 0
        for line in lines:
            for name, value in line.items():
                if name.startswith("learner/"):
                    self._learner.setdefault(name.removeprefix("learner/"), []).append(value)
            self._step = max(self._step, int(line.get("step") or 0))

    def _read_games(self) -> None:
        replaced, lines = self._games.read()
        if replaced:
            self._evaluations = {}
        for line in lines:
            if not line.keys() >= GAME_FIELDS:
                continue
            key = (line["ckpt_uid"], line["env_id"], line["opponent"])
            evaluation = self._evaluations.setdefault(key, Evaluation(*key))
            rewards = {
                int(seat): math.nan if reward is None else float(reward)
                for seat, reward in line["rewards"].items()
            }
            evaluation.add(rewards, line["player_id"], invalid=line["invalid"])


def _record(line: bytes) -> dict[str, Any] | None:
    """A line that a crash tore, and that was written on behind, is not JSON."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
