"""What is missing from the folder of an iteration or a session, and what does not belong there."""

from __future__ import annotations

import re
import zipfile
from typing import TYPE_CHECKING

from p2p.config import TrainConfig
from p2p.contracts import (
    AuthoredCode,
    EvalResult,
    IterationAggregation,
    JudgmentResult,
    Revision,
    RewardSpec,
    StatusData,
    TrainSummary,
)
from p2p.files import (
    TEMPORARY_SUFFIX,
    UnreadableError,
    load_model,
    load_object,
    load_text,
    parse_line,
)
from p2p.records.iteration_paths import names, step_of
from p2p.records.loop_files import BestRun, IterationPlan, SteeringTaken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pydantic import BaseModel

    from p2p.records.iteration_paths import IterationPaths

_FILES = frozenset({
    "config.json", "reward_fn.py", "reward_fn_revised.py", "reward_spec.json", "summary.json",
    "status.json", "status.lock", "run.lock", "prompt.txt", "judgment.json", "aggregation.json",
    "events.jsonl", "events.jsonl.lock", "trajectory.jsonl",
    "metrics", "videos", "checkpoints", "work", "tensorboard", "streaming_judgments",
    "plan.json", "reward.json", "judge.json", "judge_invalid.json", "best_run.json",
    "confirmation.json", "revision.json", "steering.json", "judged", "confirmed",
})  # fmt: skip
_PATTERNS = re.compile(r"trajectory_\d+(_\w+)?\.npz|.+\.log|.+_seed_\d+|judged_\d+")
_POLICY_FILES = ("policy.zip", "policy.safetensors")
_MAX_LINES_NAMED = 5


def iteration_problems(
    paths: IterationPaths,
    *,
    done: bool,
    evaluated: Sequence[int | None],
    runs: Mapping[str, list[str]],
) -> list[str]:
    """See IterationRecord.validate.

    Args:
        paths: the iteration.
        done: whether it says that it is complete, so that nothing may be missing.
        evaluated: the steps it has evaluated.
        runs: the problems of each of its runs, by name.
    """
    if not paths.path.is_dir():
        return [f"{paths.iteration_id}: no such folder"]
    problems = [
        *_file(paths.status_path, StatusData, needed=not (runs or _in_a_loop(paths))),
        *(
            problem
            for path, model in _optional_files(paths).items()
            for problem in _file(path, model, needed=False)
        ),
    ]
    if paths.config_path.exists() or not (runs or _in_a_loop(paths)):
        problems += _run_problems(paths, done, evaluated)
    return problems + _inside(runs) + _strangers(paths.path)


def _optional_files(paths: IterationPaths) -> dict[Path, type[BaseModel]]:
    return {
        paths.judgment_path: JudgmentResult,
        paths.aggregation_path: IterationAggregation,
        paths.plan_path: IterationPlan,
        paths.reward_path: AuthoredCode,
        paths.judge_path: AuthoredCode,
        paths.best_run_path: BestRun,
        paths.confirmation_path: JudgmentResult,
        paths.revision_path: Revision,
        paths.steering_path: SteeringTaken,
    }


def _in_a_loop(paths: IterationPaths) -> bool:
    """Whether it is a loop iteration, also before its first run has begun."""
    return paths.plan_path.exists() or paths.reward_path.exists()


def session_problems(
    folder: Path, files: Mapping[str, type[BaseModel] | None], iterations: Mapping[str, list[str]]
) -> list[str]:
    """See SessionRecord.validate.

    Args:
        folder: the session.
        files: its files and what they hold; None: any JSON object. Only status.json must be there.
        iterations: the problems of each of its iterations, by name.
    """
    if not folder.is_dir():
        return [f"{folder.name}: no such folder"]
    problems: list[str] = []
    for name, model in files.items():
        problems += _file(folder / name, model, needed=model is StatusData)
    return problems + _inside(iterations)


def _inside(problems: Mapping[str, list[str]]) -> list[str]:
    return [f"{name}/{problem}" for name, found in problems.items() for problem in found]


def _run_problems(paths: IterationPaths, done: bool, evaluated: Sequence[int | None]) -> list[str]:
    """What is wrong with a single training run."""
    problems = [
        *_file(paths.config_path, TrainConfig, needed=True),
        *_source(paths.reward_fn_path),
        *_file(paths.reward_spec_path, RewardSpec, needed=done),
        *_file(paths.summary_path, TrainSummary, needed=done),
        *_scalars(paths.scalars_path, needed=done),
    ]
    problems += [
        f"{name}: not a NumPy archive"
        for name in names(paths.path)
        if re.fullmatch(r"trajectory_.*\.npz", name) and not _is_archive(paths.path / name)
    ]
    problems += [
        f"videos/{name}: empty"
        for name in names(paths.videos_dir)
        if name.endswith(".mp4") and _size(paths.videos_dir / name) == 0
    ]
    for step in evaluated:
        # Every checkpoint that was evaluated can be judged, so its policy must be there.
        folder = paths.checkpoints_dir / f"step_{step}"
        missing = [name for name in _POLICY_FILES if not _size(folder / name)]
        problems += [f"checkpoints/{folder.name}/{name}: missing" for name in missing]
    return problems


def _file(path: Path, model: type[BaseModel] | None, *, needed: bool) -> list[str]:
    try:
        found = load_model(path, model) if model else load_object(path)
    except UnreadableError as error:
        return [f"{path.name}: {error}"]
    return [f"{path.name}: missing"] if needed and found is None else []


def _source(path: Path) -> list[str]:
    try:
        text = load_text(path)
    except UnreadableError as error:
        return [f"{path.name}: {error}"]
    if text is None:
        return [f"{path.name}: missing"]
    return [] if text.strip() else [f"{path.name}: empty"]


def _scalars(path: Path, *, needed: bool) -> list[str]:
    name = f"{path.parent.name}/{path.name}"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [f"{name}: missing"] if needed else []
    except OSError as error:
        return [f"{name}: {error.strerror}"]
    *lines, rest = data.split(b"\n")
    bad = [number for number, line in enumerate(lines, start=1) if not _is_scalars_line(line)]
    problems = [f"{name}: line {number} is not a record" for number in bad[:_MAX_LINES_NAMED]]
    if len(bad) > _MAX_LINES_NAMED:
        problems.append(f"{name}: {len(bad)} lines in all are not records")
    return [*problems, f"{name}: torn last line"] if rest else problems


def _is_scalars_line(line: bytes) -> bool:
    record = parse_line(line)
    if record is None or step_of(record) is None:
        return False
    if record.get("type", "train") != "eval":
        return bool(record.get("type", "train") == "train")
    try:
        EvalResult.model_validate_json(line)
    except ValueError:
        return False
    return True


def _strangers(folder: Path) -> list[str]:
    return [
        f"{name}: " + ("left by a killed writer" if name.endswith(TEMPORARY_SUFFIX) else "foreign")
        for name in names(folder)
        if name not in _FILES and not _PATTERNS.fullmatch(name)
    ]


def _is_archive(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except OSError:
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
