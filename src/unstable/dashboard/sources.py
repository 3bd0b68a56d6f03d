"""Sources of views: the files of a run, its parts, or the actors of a Ray cluster.

A process of its own asks a cluster (`python -m unstable.dashboard.sources`): Ray ends a process
whose cluster has gone, and writes to its terminal. Neither must happen to a dashboard.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, NotRequired, TextIO, TypeVar

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from unstable.dashboard import SourceError, View, make_view, read_gpus
from unstable.evaluation import Evaluation
from unstable.run import RunFolder
from unstable.utils.files import open_data, read_json, to_json

INTERFACE, METRICS, GAMES = "interface.json", "metrics.jsonl", "eval_data/games.jsonl"
EXPLOITABILITY = "eval_data/exploitability.jsonl"
MOST = 1e100
"""Numbers beyond it, whose squares and sums are not finite, no game or learner gives."""
Finite = Annotated[float, Field(gt=-MOST, lt=MOST)]
Count = Annotated[int, Field(ge=0, lt=1 << 53)]
Name = Annotated[str, Field(max_length=1000)]
Line = TypeVar("Line")


class _Game(TypedDict):
    ckpt_uid: Name
    env_id: Name
    opponent: Name
    rewards: dict[int, Finite | None]
    player_id: int
    invalid: bool


class _Solved(TypedDict):
    ckpt_uid: Name
    env_id: Name
    exploitability: Finite | None


class _Rating(TypedDict):
    mu: Finite
    sigma: Finite
    active: NotRequired[bool]


_Numbers = dict[str, Finite | None]
_Interface = TypedDict(
    "_Interface",
    {
        "run_name": str, "step": Count, "inference": dict[str, _Numbers], "gpu_tok_s": _Numbers,
        "scalars": _Numbers, "TS": dict[str, _Rating], "match_counts": list[tuple[str, str, Count]],
        "exploration": dict[str, _Numbers], "counts": dict[str, Finite], "latest_game": str,
        "write_failures": Finite | None, "Win Rate": Finite | None, "Reward": Finite | None,
        "Game Length": Finite | None, "Format Success Rate": Finite | None,
        "Invalid Move Rate": Finite | None, "Response Length (char)": Finite | None,
    },
    total=False,
)  # fmt: skip
"""What is shown of interface.json; whatever else is there is left as it is."""
_GAME, _SOLVED = TypeAdapter(_Game), TypeAdapter(_Solved)
_INTERFACE = TypeAdapter(_Interface)
PACE = 20
"""The latest updates, whose pace tells how long the rest will take."""
MAX_READ_BYTES = 64 << 20
"""Of a file at a time; the rest comes with the next look."""
RECENT = 180.0
"""Seconds after its last write for which a run is taken to use this machine's GPUs."""


class Tail:
    """Reads a file of JSON lines, each line once, while others append to it."""

    def __init__(self, path: Path, folder: Path | None = None) -> None:
        self.path, self.folder = path, folder or path.parent
        self._offset = 0
        self._file: tuple[int, int] | None = None

    def read(self) -> tuple[bool, list[dict[str, Any]]]:
        """Return whether the file was replaced, which voids earlier lines, and the new lines.

        A last line that is not finished is left for the next time.
        """
        try:
            with open_data(self.path, self.folder) as stream:
                stat = os.fstat(stream.fileno())
                file = (stat.st_dev, stat.st_ino)
                replaced = self._file not in (None, file) or stat.st_size < self._offset
                self._file = file
                stream.seek(0 if replaced else self._offset)
                text = stream.read(MAX_READ_BYTES)
        except FileNotFoundError:
            replaced, self._offset, self._file = self._offset > 0, 0, None
            return replaced, []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset = len(whole) + (0 if replaced else self._offset)
        return replaced, [record for line in whole.splitlines() if (record := _parse_line(line))]


class RunFiles:
    """A source of views.

    The learner's curves and the evaluation games are on disk at once; the rest is as old as the
    tracker's last flush.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        if not any((run / name).exists() for name in (INTERFACE, METRICS)):
            raise SourceError(f"{run} is not a run: it has neither {INTERFACE} nor {METRICS}")
        self._metrics, self._games = Tail(run / METRICS, run), Tail(run / GAMES, run)
        self._solved = Tail(run / EXPLOITABILITY, run)
        self._exploitability: dict[tuple[str, str], float | None] = {}
        self._learner: dict[str, list[float | None]] = {}
        self._step = 0
        self._updated: deque[tuple[int, float]] = deque(maxlen=PACE + 1)
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
        info["step"] = max(self._step, info.get("step") or 0)
        info["evaluation"] = self._summaries()
        info.setdefault("run_name", self.run.name)
        used_now = info.get("gpu_tok_s") and time.time() - written < RECENT
        status = RunFolder(self.run).seen_status()
        view = make_view(
            info,
            written=written,
            gpus=read_gpus() if used_now else (),
            status=None if status is None else asdict(status),
        )
        return replace(view, seconds_left=self._seconds_left(view))

    def evaluations(self) -> list[dict[str, Any]]:
        """Return a row by checkpoint, game and opponent, from the games on disk."""
        self._read_games()
        return self._summaries()

    def _summaries(self) -> list[dict[str, Any]]:
        return [
            {**e.summary(), "exploitability": self._exploitability.get((e.ckpt_uid, e.env_id))}
            for e in self._evaluations.values()
        ]

    def _seconds_left(self, view: View) -> float | None:
        if view.status != "running" or view.updates is None or len(self._updated) < 2:
            return None
        (first, begin), (last, end) = self._updated[0], self._updated[-1]
        return (end - begin) / (last - first) * max(0, view.updates - last)

    def _paths(self) -> list[Path]:
        return [self.run / name for name in (INTERFACE, METRICS, GAMES)]

    def _interface(self) -> dict[str, Any]:
        path = self.run / INTERFACE
        try:
            info = read_json(path, self.run)
            shown = _INTERFACE.validate_python(info)
        except FileNotFoundError:  # before the tracker's first flush
            return {}
        except ValidationError as error:
            wrong = ".".join(map(str, error.errors()[0]["loc"]))
            where = f": {wrong}" if wrong else ""
            raise SourceError(f"{path} does not hold what a tracker writes{where}") from error
        except ValueError as error:
            raise SourceError(f"{path} is not JSON: {error}") from error
        return {**info, **shown}

    def _read_metrics(self) -> None:
        replaced, lines = self._metrics.read()
        if replaced:
            self._learner, self._step = {}, 0
            self._updated.clear()
        for line in lines:
            for name, value in line.items():
                if name.startswith("learner/"):
                    values = self._learner.setdefault(name.removeprefix("learner/"), [])
                    values.append(_as_finite(value))
            step, updated = int(_as_finite(line.get("step")) or 0), _as_finite(line.get("time"))
            if step > self._step and updated is not None:
                self._updated.append((step, updated))
            self._step = max(self._step, step)

    def _read_games(self) -> None:
        replaced, lines = self._solved.read()
        if replaced:
            self._exploitability = {}
        for solved in _filter_valid(_SOLVED, lines):
            key = solved["ckpt_uid"], solved["env_id"]
            self._exploitability[key] = solved["exploitability"]
        replaced, lines = self._games.read()
        if replaced:
            self._evaluations = {}
        for game in _filter_valid(_GAME, lines):
            played = (game["ckpt_uid"], game["env_id"], game["opponent"])
            rewards = {
                seat: math.nan if reward is None else reward
                for seat, reward in game["rewards"].items()
            }
            if game["player_id"] in rewards:
                evaluation = self._evaluations.setdefault(played, Evaluation(*played))
                evaluation.add(rewards, game["player_id"], invalid=game["invalid"])


def _filter_valid(kind: TypeAdapter[Line], lines: Iterable[dict[str, Any]]) -> Iterator[Line]:
    """Yield the lines of this kind; others are of another program, or damaged."""
    for line in lines:
        with suppress(ValidationError):
            yield kind.validate_python(line)


def _as_finite(value: Any) -> float | None:
    """Return the value if it is a number that can be shown."""
    is_number = isinstance(value, int | float) and -MOST < value < MOST
    return float(value) if is_number else None


def _parse_line(line: bytes) -> dict[str, Any] | None:
    """Parse a line; None where a crash tore it."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


SECONDS = 10.0
"""For an actor to answer; one that is busy for longer is asked again later."""


class LiveParts:
    """A source of views that asks a run's parts, here or on Ray."""

    def __init__(self, tracker: Any, step_buffer: Any = None) -> None:
        self._tracker, self._step_buffer = tracker, step_buffer

    def fetch(self) -> View:
        info, buffer = self.ask()
        return make_view(info, buffer=buffer, gpus=read_gpus())

    def ask(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return the tracker's info, and the buffer's statistics if it has one."""
        info = _ask(self._tracker, "tracker", "get_interface_info")
        if self._step_buffer is None:
            return info, None
        try:
            return info, _ask(self._step_buffer, "step buffer", "stats")
        except SourceError:  # without it the tracker still has nearly everything
            return info, None


def _ask(target: Any, name: str, method: str) -> dict[str, Any]:
    bound = getattr(target, method)
    if not hasattr(bound, "remote"):
        return dict(bound())
    import ray

    try:
        return dict(ray.get(bound.remote(), timeout=SECONDS))
    except ray.exceptions.GetTimeoutError:
        raise SourceError(f"the {name} has not answered for {SECONDS:g} s") from None
    except ray.exceptions.RayActorError:
        raise SourceError(f"the {name} is gone") from None
    except ray.exceptions.RayError as error:
        raise SourceError(f"the {name} cannot be asked: {type(error).__name__}") from None


FIRST = 120.0
"""Seconds for Ray to start and connect."""
NEXT = 15.0
"""Seconds for each further line: the feed writes one every two, unless the tracker is busy."""


class ClusterRun:
    """A source of views: a process that asks the actors `Tracker` and `StepBuffer`."""

    def __init__(self, address: str = "auto", namespace: str = "unstable") -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._patience = FIRST
        self._ended = False
        self._last_error = "the process that polls the tracker has ended"
        module = "unstable.dashboard.sources"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, "--address", address, "--namespace", namespace],
            cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, encoding="utf-8", start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, name="feed", daemon=True).start()

    def fetch(self) -> View:
        """Return the newest view; waits for the next one where there is no newer."""
        record = self._newest()
        if "error" in record:
            self._last_error = str(record["error"])
            raise SourceError(self._last_error)
        return make_view(record["info"], buffer=record["buffer"], gpus=read_gpus())

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def _newest(self) -> dict[str, Any]:
        """Return the last line that has come; older ones are skipped."""
        line: str | None = None
        try:
            while not self._ended and (line is None or not self._lines.empty()):
                newer = self._lines.get(timeout=self._patience)
                line, self._ended = newer or line, newer is None
        except queue.Empty:
            raise SourceError(f"the cluster has not answered for {self._patience:g} s") from None
        self._patience = NEXT
        if line is None:
            raise SourceError(self._last_error)
        record: dict[str, Any] = json.loads(line)
        return record


EVERY = 2.0
"""Seconds between lines."""
KNOCK = 5.0
"""Seconds for a cluster's port to open."""


def main() -> None:
    """Write a JSON line every two seconds: `info` and `buffer`, or `error`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--namespace", required=True)
    options = parser.parse_args()
    lines = _redirect_stdout()
    try:
        parts = find_parts(options.address, options.namespace)
    except SourceError as error:
        _write(lines, {"error": str(error)})
        sys.exit(1)
    while True:
        try:
            info, buffer = parts.ask()
            info["match_counts"] = [[*pair, n] for pair, n in info["match_counts"].items()]
            _write(lines, {"info": info, "buffer": buffer})
        except SourceError as error:
            _write(lines, {"error": str(error)})
        except BrokenPipeError:  # nobody reads any more
            return
        time.sleep(EVERY)


def find_parts(address: str, namespace: str) -> LiveParts:
    """Return the tracker and the step buffer of the cluster.

    Raises:
        SourceError: there is no cluster, or no run in it.
    """
    import ray

    try:
        _check_port(address)
        ray.init(
            address, namespace=namespace, log_to_driver=False, configure_logging=False,
            logging_level=logging.ERROR,
        )  # fmt: skip
    except (OSError, ValueError, RuntimeError) as error:
        where = "on this machine" if address == "auto" else f"at {address}"
        raise SourceError(
            f"no Ray cluster is running {where}: begin a run, give --address, or show a run that"
            " has ended with `unstable watch RUN`"
        ) from error
    try:
        tracker = ray.get_actor("Tracker")
    except ValueError:
        others = sorted(
            actor["namespace"]
            for actor in ray.util.list_named_actors(all_namespaces=True)
            if actor["name"] == "Tracker"
        )
        hint = f"; there is one in {', '.join(others)}: use --namespace" if others else ""
        raise SourceError(
            f"no actor named 'Tracker' in the namespace {namespace!r} of the cluster{hint}"
        ) from None
    try:
        step_buffer = ray.get_actor("StepBuffer")
    except ValueError:
        step_buffer = None
    return LiveParts(tracker, step_buffer)


def _check_port(address: str) -> None:
    """Raise OSError where no server listens: Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        with socket.create_connection((host, int(port)), timeout=KNOCK):
            pass


def _redirect_stdout() -> TextIO:
    """Keep standard output for our lines; send what libraries print to standard error."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return lines


def _write(lines: TextIO, record: dict[str, Any]) -> None:
    lines.write(to_json(record) + "\n")
    lines.flush()


if __name__ == "__main__":
    main()
