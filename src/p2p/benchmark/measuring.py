"""The ground truth of a case: its session's policy, played and measured; kept beside the cases.

It lies outside of the session's folder, which is all that agents are shown.
"""

from __future__ import annotations

import hashlib
import statistics
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from p2p.benchmark.records import case_record
from p2p.benchmark.suite import Case
from p2p.benchmark.truth import TRUTHS
from p2p.benchmark.truth.playing import SEEDS, NotPlayable, play_policy
from p2p.contracts import Record, SessionResult
from p2p.files import read_model, save_model

NOT_YET = "not measured yet"


class TruthResult(Record):
    """truth/case<n>.json: what was measured."""

    truth: str
    unit: str
    better: Literal["at_least", "at_most"]
    threshold: float
    value: float
    """The mean over the episodes."""
    std: float
    values: tuple[float, ...]
    passed: bool
    attained: Annotated[float, Field(ge=0, le=1)]
    """How much of the threshold: comparable between truths."""
    seeds: tuple[int, ...]
    policy: str
    """SHA-256 of the file that was played."""


def truth_path(folder: Path, number: int) -> Path:
    """Where the measurement of a case lies, in the benchmark's folder."""
    return folder / "truth" / f"case{number}.json"


def policy_file(session: Path, result: SessionResult | None) -> Path | None:
    """The file that can be played without trusting it; None: the session made no policy."""
    if result is None or result.policy is None:
        return None
    path = (session / result.policy).with_name("policy.safetensors")
    # result.json may have come from another machine: it names no file outside of the session.
    if not path.resolve().is_relative_to(session.resolve()):
        raise NotPlayable(f"{session.name}: its policy is said to lie outside of it")
    return path


def measure(
    folder: Path, case: Case, result: SessionResult | None, seeds: tuple[int, ...] = SEEDS
) -> TruthResult | None:
    """Measure a case, or read what was measured of the same policy before.

    None: there is no truth to compare with, or no policy. Raises NotPlayable.
    """
    path = policy_file(case_record(folder, case.number).path, result)
    if path is None or case.truth is None or case.threshold is None:
        return None
    digest = _digest(path)
    kept = _kept(folder, case, digest, seeds)
    if kept is not None:
        return kept
    truth = TRUTHS.get(case.truth)
    if truth is None:
        raise NotPlayable(f"there is no truth {case.truth!r} in this version")
    values = tuple(truth.measure(e) for e in play_policy(case.env_id, path, seeds))
    value = statistics.fmean(values)
    found = TruthResult(
        truth=case.truth,
        unit=truth.unit,
        better=truth.better,
        threshold=case.threshold,
        value=value,
        std=statistics.pstdev(values),
        values=values,
        passed=truth.passes(value, case.threshold),
        attained=truth.attained(value, case.threshold),
        seeds=seeds,
        policy=digest,
    )
    save_model(truth_path(folder, case.number), found)
    return found


def measured(
    folder: Path, case: Case, result: SessionResult | None, seeds: tuple[int, ...] = SEEDS
) -> TruthResult | None:
    """As `measure`, but nothing is played: raises NotPlayable for what is not measured yet."""
    path = policy_file(case_record(folder, case.number).path, result)
    if path is None or case.truth is None or case.threshold is None:
        return None
    kept = _kept(folder, case, _digest(path), seeds)
    if kept is None:
        raise NotPlayable(NOT_YET)
    return kept


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise NotPlayable(f"{path}: {error.strerror}") from error


def _kept(folder: Path, case: Case, digest: str, seeds: tuple[int, ...]) -> TruthResult | None:
    kept = read_model(truth_path(folder, case.number), TruthResult)
    asked = (case.truth, case.threshold, seeds, digest)
    same = kept is not None and (kept.truth, kept.threshold, kept.seeds, kept.policy) == asked
    return kept if same else None
