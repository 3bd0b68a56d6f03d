"""Metrics writers: one protocol, and a dict of its implementations; and games on disk.

Importing this module loads none of the libraries; a writer loads its own when it is opened.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from contextvars import copy_context
from pathlib import Path
from typing import Any, Literal, Protocol

from unstable.core import EpisodeResult, PlaySpec, TaskMeta
from unstable.utils.files import open_data, to_json, write_whole


class MetricsWriter(Protocol):
    """Writes numbers by name, in order."""

    def write(self, values: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class MissingExtraError(ImportError):
    """The library of a metrics writer is not installed."""

    def __init__(self, extra: str) -> None:
        super().__init__(f"{extra} is not installed: pip install 'prompt2policy[{extra}]'")
        self.extra = extra


class JsonlWriter:
    """A file of strict JSON lines; numbers that are not finite are null.

    Opening it drops a torn last line, and the lines beyond the step that a run resumes from.
    """

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        truncate_lines(path, resume_step)
        self._file = path.open("a", encoding="utf-8")

    def write(self, values: Mapping[str, Any], step: int) -> None:
        record = {"time": round(time.time(), 3), "step": step, **values}
        self._file.write(to_json(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoardWriter:
    """Event files in TensorBoard's own record format; neither torch nor TensorFlow is loaded.

    A resumed run begins a new file that tells readers to forget what lies beyond its first step.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        # TensorBoard's EventFileWriter would import TensorFlow where that is installed, and writes
        # from a thread; records are all it adds to this.
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        # Readers take files in the order of their names.
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}.0"
        self._records = RecordWriter((folder / name).open("xb"))
        self._write(file_version="brain.Event:2")
        if resume_step is not None:
            started = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(step=resume_step + 1, session_log=started)

    def write(self, values: Mapping[str, float], step: int) -> None:
        entries = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in _finite(values).items()
        ]
        self._write(step=step, summary=self._summary(value=entries))

    def close(self) -> None:
        self._records.close()

    def _write(self, **fields: Any) -> None:
        event = self._event(wall_time=time.time(), **fields)
        self._records.write(event.SerializeToString())
        self._records.flush()


class WandbWriter:
    """Weights & Biases; WANDB_MODE=offline keeps everything below the folder.

    A resumed run continues under its `run_id`, which must differ between runs.
    """

    def __init__(
        self,
        folder: Path,
        project: str,
        run_name: str,
        run_id: str,
        step_metric: str,
        group: str = "",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        wandb = _import_library("wandb")
        folder.mkdir(parents=True, exist_ok=True)
        identifier = re.sub(r"[^A-Za-z0-9_.-]", "-", run_id)[-128:]  # ids allow little else
        self._run = wandb.init(
            project=project,
            name=run_name,
            id=identifier,
            group=group or None,
            config=dict(config or {}),
            dir=str(folder),
            resume="allow",
            settings={"symlink": False},
        )
        self._folder = folder / "wandb"
        self._remove_links()
        # Steps of ours on the axis: W&B's own counter refuses to go back after a resume.
        self._step_metric = step_metric
        self._run.define_metric("*", step_metric=step_metric)

    def write(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({self._step_metric: step, **values})

    def close(self) -> None:
        self._run.finish()
        self._remove_links()

    def _remove_links(self) -> None:
        """A run's folder with links is refused; W&B links its own log whatever is set."""
        for path in self._folder.rglob("*"):
            if path.is_symlink():
                path.unlink(missing_ok=True)


class TrackioWriter:
    """trackio's local dashboard; a resumed run continues under its name."""

    def __init__(
        self,
        project: str,
        run_name: str,
        group: str = "",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        trackio = _import_library("trackio")
        # It says where its dashboard is, and would end the run of its context again at exit.
        with redirect_stdout(sys.stderr):
            self._run = copy_context().run(
                trackio.init,
                project=project,
                name=run_name,
                group=group or None,
                config=dict(config or {}),
                resume="allow",
                embed=False,
            )

    def write(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(_finite(values), step=step)

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self._run.finish()


WRITERS: dict[str, Callable[[Path, str, str, int | None], MetricsWriter]] = {
    "jsonl": lambda folder, _, __, step: JsonlWriter(folder / "metrics.jsonl", step),
    "tensorboard": lambda folder, _, __, step: TensorBoardWriter(folder / "tensorboard", step),
    "wandb": lambda folder, project, run, _: WandbWriter(
        folder, project, run, "-".join(folder.parts[-3:]), "learner_step"
    ),
    "trackio": lambda _, project, run, __: TrackioWriter(project, run),
}
"""By name: a function of the run's folder, the project, the run's name, and the step that the run
continues from (None: it is new).
"""


def truncate_lines(path: Path, resume_step: int | None, step_key: str = "step") -> None:
    """Drop torn and foreign lines, and those beyond the step that a run resumes from."""
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    limit = math.inf if resume_step is None else resume_step
    kept = [line for line in lines if line.endswith("\n") and _step_of(line, step_key) <= limit]
    if kept != lines:
        write_whole(path, "".join(kept))


def _step_of(line: str, step_key: str) -> float:
    """Return the line's step; NaN, which no comparison holds for, where it has none."""
    try:
        return float(json.loads(line)[step_key])
    except (ValueError, KeyError, TypeError):
        return math.nan


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _import_library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingExtraError(name) from error


Kind = Literal["train", "eval"]

FOLDER = "games"
LIMITS: dict[str, tuple[int, int]] = {"train": (256, 8 << 20), "eval": (2048, 32 << 20)}
"""By kind: a file is full with so many games, or so many bytes. There are two files of each."""
MAX_TEXT = 20_000
"""Characters of an observation or an answer that are kept, the last ones."""


def make_transcript(
    spec: PlaySpec, meta: TaskMeta, result: EpisodeResult, number: int
) -> dict[str, Any]:
    """Return a game as it is written.

    Of an observation only what differs from the player's last one is kept: `shared` is how many
    characters they have in common from the start.
    """
    moves, last = [], dict[int, str]()
    for move in result.moves:
        observation = _cut(move.observation)
        shared = _count_common(last.get(move.seat, ""), observation)
        last[move.seat] = observation
        moves.append(
            {
                "seat": move.seat, "shared": shared, "observation": observation[shared:],
                "answer": _cut(move.answer), "action": _cut(move.action), "legal": move.legal,
                "board": move.board, "opening": move.opening,
            }
        )  # fmt: skip
    players = [
        {
            "seat": seat,
            "uid": meta.ckpt_uid if seat == spec.player_id else meta.opponent_uid or meta.ckpt_uid,
            "kind": agent.kind,
            "version": agent.version,
            "learner": seat == spec.player_id,
        }
        for seat, agent in enumerate(spec.agent_specs)
    ]
    return {
        "id": f"{meta.type}-{number}", "kind": meta.type, "env_id": spec.env_id,
        "seed": spec.seed, "group": spec.group, "players": players, "moves": moves,
        "rewards": result.final_rewards, "reason": result.reason,
        "ended_by_invalid": result.traj.ended_by_invalid,
    }  # fmt: skip


def format_transcript(game: Mapping[str, Any]) -> str:
    """Format a game for a terminal: every move with the board after it.

    Where a game draws no board, what was new to the player is shown before its answer.
    """
    names = [player["uid"] for player in game["players"]]
    lines = [f"{game['env_id']}, {game['id']}: {' against '.join(names)}", ""]
    for move in game["moves"]:
        who = "opening" if move["opening"] else names[move["seat"]]
        thoughts = [] if move["answer"].strip() in move["action"] else [move["answer"].strip()]
        lines += [
            *([] if move["board"] else [move["observation"].strip()]),
            *thoughts,
            f"player {move['seat']} ({who}) {move['action']}{'' if move['legal'] else ': illegal'}",
            *([move["board"]] if move["board"] else []),
            "",
        ]
    rewards = ", ".join(f"{seat}: {reward:g}" for seat, reward in game["rewards"].items())
    return "\n".join([*lines, f"rewards {rewards}  {game['reason']}".strip()])


class Transcripts:
    """Appends games to a run's folder, which it owns.

    Args:
        run_dir: the run's folder.
        resume_step: the learner's step that the run continues from. Training games since are
            dropped: they are played again.
    """

    def __init__(self, run_dir: Path, resume_step: int | None = None) -> None:
        self._folder = run_dir / FOLDER
        self._games: dict[str, int] = {}
        # A state is taken after the evaluation of its step, and before the step's training games.
        last_training = None if resume_step is None else resume_step - 1
        for kind, last in (("train", last_training), ("eval", resume_step)):
            for name in file_names(kind):
                truncate_lines(self._folder / name, last)

    def add(self, game: Mapping[str, Any]) -> None:
        """Append a game; it is written when this returns."""
        kind = game["kind"]
        older, newest = (self._folder / name for name in file_names(kind))
        self._folder.mkdir(exist_ok=True)
        if kind not in self._games:
            self._games[kind] = sum(1 for _ in _read_lines(newest))
        most_games, most_bytes = LIMITS[kind]
        if newest.exists() and (
            self._games[kind] >= most_games or newest.stat().st_size >= most_bytes
        ):
            newest.replace(older)
            self._games[kind] = 0
        with newest.open("a", encoding="utf-8") as stream:
            stream.write(to_json(game) + "\n")
        self._games[kind] += 1


def read_games(run_dir: Path, kind: Kind) -> Iterator[dict[str, Any]]:
    """Yield the games of a run, oldest first, with whole observations; also while it runs.

    Lines that are not whole, and files that go while they are read, are passed over.
    """
    for name in file_names(kind):
        for line in _read_lines(run_dir / FOLDER / name, run_dir):
            try:
                yield restore_observations(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue


def restore_observations(game: dict[str, Any]) -> dict[str, Any]:
    """Restore whole observations from what was new of them."""
    last = dict[int, str]()
    for move in game["moves"]:
        seat = move["seat"]
        last[seat] = last.get(seat, "")[: move.pop("shared")] + move["observation"]
        move["observation"] = last[seat]
    return game


def file_names(kind: str) -> tuple[str, str]:
    """Return the older file and the newest."""
    return f"{kind}.1.jsonl", f"{kind}.jsonl"


def _read_lines(path: Path, run_dir: Path | None = None) -> Iterator[bytes]:
    try:
        with open_data(path, run_dir or path.parent) as stream:
            yield from stream
    except FileNotFoundError:
        return


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else "…" + text[-MAX_TEXT:]


def _count_common(one: str, other: str) -> int:
    """Return how many characters two texts have in common from the start."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low
