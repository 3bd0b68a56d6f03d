"""The dashboard's view of a run, as data made from a tracker's info or files."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from unstable.evaluation import parse_iteration
from unstable.utils.logging import printable

CURVE_ORDER = ("loss", "grad", "reward", "kl", "entropy", "ratio", "clip", "value", "lr")
"""Curves are shown by the first of these words in their names; others follow by name."""
MAX_CURVE = 10_000
"""Steps of a curve, the last ones."""
COLLECTED = {
    "Win Rate": "win rate",
    "Reward": "reward",
    "Game Length": "game length",
    "Format Success Rate": "format success",
    "Invalid Move Rate": "invalid moves",
    "Response Length (char)": "answer length",
}
"""Means over the latest training games, and what they are called here."""
FAILURES = ("fail", "error", "dead", "lost", "drop", "skipped")
"""A scalar of the run with one of these words in its name counts what went wrong."""


@dataclass(frozen=True)
class Throughput:
    name: str
    tok_s: float
    running: float
    queued: float


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    busy: float | None
    """Share of time, 0 to 1; None where the card does not say."""
    used_gib: float
    total_gib: float
    watts: float | None
    tok_s: float | None = None


@dataclass(frozen=True)
class Curve:
    """A number of the learner, step by step; None: it was not finite."""

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class CheckpointRate:
    """The evaluation of one checkpoint, with the 95 % interval."""

    ckpt_uid: str
    update: int | None
    """How often the learner had updated it; None where its name does not say."""
    games: int
    win_rate: float
    low: float
    high: float
    reward: float
    """The mean over its games."""
    exploitability: float | None
    """What a best response to it gains, where the game is small enough to compute it."""


@dataclass(frozen=True)
class WinRate:
    """Evaluations of checkpoints against one opponent in one environment, or alone."""

    env_id: str
    opponent: str
    ckpt_uid: str
    """The newest; the numbers are of its games."""
    games: int
    win_rate: float
    low: float
    high: float
    draw_rate: float
    invalid_rate: float
    players: int
    """1: it plays alone. Then the reward says how it did, and a win is a game wholly solved."""
    reward: float
    reward_se: float
    exploitability: float | None
    history: tuple[CheckpointRate, ...]
    """Every checkpoint so far, the oldest first."""


@dataclass(frozen=True)
class RatingRow:
    uid: str
    mu: float
    sigma: float
    active: bool


@dataclass(frozen=True)
class Match:
    first: str
    second: str
    games: int


@dataclass(frozen=True)
class Number:
    name: str
    value: float


@dataclass(frozen=True)
class View:
    run_name: str
    step: int
    written: float | None = None
    """When the files were last written, as Unix time; None: the run itself was asked."""
    status: str = ""
    """`running`, `completed`, `cancelled` or `failed`, where the run says so."""
    updates: int | None = None
    """Steps that the learner is to make."""
    seconds_left: float | None = None
    """Until the last of them, at the pace of the latest; None: it does not run, or is too new."""
    message: str = ""
    """What the run says about its status."""
    engines: tuple[Throughput, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    curves: tuple[Curve, ...] = ()
    collected: tuple[Number, ...] = ()
    """Means over the latest training games."""
    win_rates: tuple[WinRate, ...] = ()
    ratings: tuple[RatingRow, ...] = ()
    """The strongest first."""
    matches: tuple[Match, ...] = ()
    exploration: tuple[tuple[str, tuple[Number, ...]], ...] = ()
    """By environment."""
    games: tuple[Number, ...] = ()
    """Training and evaluation games so far, by environment."""
    buffer_size: int | None = None
    failures: tuple[Number, ...] = ()
    """What went wrong, and how often: only what did."""
    latest_game: str = ""


def make_view(
    info: Mapping[str, Any],
    *,
    buffer: Mapping[str, Any] | None = None,
    gpus: tuple[Gpu, ...] = (),
    written: float | None = None,
    status: Mapping[str, Any] | None = None,
) -> View:
    """Make the view of a tracker's `get_interface_info`; missing fields are left empty.

    Args:
        info: as the tracker gives it, or as it was read from JSON.
        buffer: the step buffer's `stats`.
        gpus: of this machine.
        written: when `info` was written, if it is from files.
        status: what the run says about itself: `status`, `updates` and `message`.
    """
    learner = info.get("learner", {})  # long: only what is shown of it is looked at
    info = _clean({key: value for key, value in info.items() if key != "learner"})
    buffer, status = buffer or {}, _clean(status or {})
    scalars, tok_s = info.get("scalars", {}), info.get("gpu_tok_s", {})
    size = buffer.get("size", scalars.get("buffer/size"))
    return View(
        run_name=info.get("run_name", ""),
        step=int(info.get("step") or 0),
        written=written,
        status=status.get("status", ""),
        updates=status.get("updates"),
        message=status.get("message", ""),
        engines=tuple(
            Throughput(name, *(values.get(key) or 0.0 for key in ("tok_s", "running", "queued")))
            for name, values in sorted(info.get("inference", {}).items())
        ),
        gpus=tuple(replace(gpu, tok_s=tok_s.get(str(gpu.index))) for gpu in gpus),
        curves=_make_curves(learner),
        collected=_make_numbers({label: info.get(key) for key, label in COLLECTED.items()}),
        win_rates=_make_win_rates(info.get("evaluation", [])),
        ratings=_make_ratings(info.get("TS", {})),
        matches=_make_matches(info.get("match_counts", ())),
        exploration=tuple(
            (env_id, _make_numbers(values))
            for env_id, values in sorted(info.get("exploration", {}).items())
        ),
        games=_count_games(info.get("counts", {})),
        buffer_size=None if size is None else int(size),
        failures=_list_failures(scalars, buffer, info.get("write_failures")),
        latest_game=info.get("latest_game", ""),
    )


def _clean(value: Any) -> Any:
    """Strip control characters from texts, and replace numbers that are not finite by None."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        # Pairs are the keys of match counts, numbers those of GPUs.
        return {
            _clean(key if isinstance(key, tuple) else str(key)): _clean(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(map(_clean, value))
    return value


def _make_numbers(values: Mapping[str, float | None]) -> tuple[Number, ...]:
    return tuple(Number(name, value) for name, value in values.items() if value is not None)


def _make_curves(learner: Mapping[str, Any]) -> tuple[Curve, ...]:
    def place(name: str) -> tuple[int, str]:
        places = [i for i, word in enumerate(CURVE_ORDER) if word in name.lower()]
        return (places[0] if places else len(CURVE_ORDER), name)

    return tuple(
        Curve(printable(name), tuple(_clean(learner[name][-MAX_CURVE:])))
        for name in sorted(learner, key=place)
        if name != "step" and learner[name]
    )


def _make_win_rates(evaluations: list[Mapping[str, Any]]) -> tuple[WinRate, ...]:
    """Group evaluations by environment and opponent; the newest checkpoint is the last."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for evaluation in sorted(evaluations, key=lambda one: parse_iteration(one["ckpt_uid"])):
        if evaluation["games"]:
            groups.setdefault((evaluation["env_id"], evaluation["opponent"]), []).append(evaluation)
    return tuple(
        WinRate(
            env_id=env_id,
            opponent=opponent,
            ckpt_uid=rows[-1]["ckpt_uid"],
            games=rows[-1]["games"],
            win_rate=rows[-1]["win_rate"],
            low=rows[-1]["win_rate_low"],
            high=rows[-1]["win_rate_high"],
            draw_rate=rows[-1]["draw_rate"],
            invalid_rate=rows[-1]["invalid_rate"],
            players=rows[-1]["players"],
            reward=rows[-1]["reward"],
            reward_se=rows[-1]["reward_se"],
            exploitability=rows[-1]["exploitability"],
            history=tuple(_make_checkpoint_rate(row) for row in rows),
        )
        for (env_id, opponent), rows in groups.items()
    )


def _make_checkpoint_rate(evaluation: Mapping[str, Any]) -> CheckpointRate:
    uid = evaluation["ckpt_uid"]
    number = parse_iteration(uid)
    return CheckpointRate(
        ckpt_uid=uid,
        # What the learner starts from is numbered -1.
        update=max(0, int(number)) if math.isfinite(number) else None,
        games=evaluation["games"],
        win_rate=evaluation["win_rate"],
        low=evaluation["win_rate_low"],
        high=evaluation["win_rate_high"],
        reward=evaluation["reward"],
        exploitability=evaluation["exploitability"],
    )


def _make_ratings(ratings: Mapping[str, Mapping[str, Any]]) -> tuple[RatingRow, ...]:
    rows = [
        RatingRow(uid, rating["mu"], rating["sigma"], rating.get("active", True))
        for uid, rating in ratings.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.mu))


def _make_matches(counts: Any) -> tuple[Match, ...]:
    """Read match counts from pairs to counts, or from triples as JSON has them."""
    triples = [(*pair, n) for pair, n in counts.items()] if isinstance(counts, Mapping) else counts
    return tuple(sorted((Match(*triple) for triple in triples), key=lambda match: -match.games))


def _count_games(counts: Mapping[str, Any]) -> tuple[Number, ...]:
    names = {"collection-": "train", "evaluation-": "eval"}
    return tuple(
        Number(f"{names[prefix]} {name.removeprefix(prefix)}", float(count))
        for prefix in names
        for name, count in sorted(counts.items())
        if name.startswith(prefix)
    )


def _list_failures(
    scalars: Mapping[str, float | None], buffer: Mapping[str, Any], write_failures: Any
) -> tuple[Number, ...]:
    counted = {**scalars, **{f"buffer/{name}": value for name, value in buffer.items()}}
    failed = {
        name: value
        for name, value in counted.items()
        if any(word in name.rsplit("/", 1)[-1] for word in FAILURES)
    }
    failed["metrics not written"] = write_failures
    return tuple(number for number in _make_numbers(failed) if number.value)


class SourceError(Exception):
    """No view can be had now; the message says why. A later call may succeed."""


class Source(Protocol):
    """Fetches views of a run; called from one thread at a time."""

    def fetch(self) -> View:
        """Return the view now, within seconds; raise SourceError where there is none."""
        ...


FIELDS = "index,name,utilization.gpu,memory.used,memory.total,power.draw"
SECONDS = 5.0


def read_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that `nvidia-smi` lists; none where it is missing or does not answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    command = [tool, f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"]
    try:
        table = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=SECONDS
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_gpus(table)


def parse_gpus(table: str) -> tuple[Gpu, ...]:
    """Read one GPU per line of comma-separated FIELDS; other lines are left out."""
    gpus = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(FIELDS.split(",")) or not cells[0].isdigit():
            continue
        busy, used, total, watts = map(_parse_sensor, cells[2:])
        gpus.append(
            Gpu(
                index=int(cells[0]),
                name=cells[1],
                busy=None if busy is None else busy / 100,
                used_gib=(used or 0.0) / 1024,
                total_gib=(total or 0.0) / 1024,
                watts=watts,
            )
        )
    return tuple(gpus)


def _parse_sensor(cell: str) -> float | None:
    """Return the number; None for `[N/A]`, which cards without a sensor report."""
    try:
        return float(cell)
    except ValueError:
        return None
