"""The episode that an iteration was judged by: its files, its frames, and numbers out of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from p2p.agents.judging.episodes import film
from p2p.agents.judging.frames import MOTION_TRAIL
from p2p.contracts import ROLLOUT_LABELS, RolloutJudgment
from p2p.inference.providers import PROVIDERS, choose_model
from p2p.inference.question import InferenceError, Media, RequestRejected
from p2p.inference.vlm import frames_of
from p2p.records.session_view import RunView, SessionView
from p2p.training.trajectory import Column, RecordedEpisode, TrajectoryFileError

FRAMES = 6
MOST_ROWS = 40
MOST_COLUMNS = 12
_COLUMN = re.compile(r"(\w+)(?:\[(\d+(?:\s*,\s*\d+)*)\])?")


def episode_files(run: RunView) -> dict[str, Path]:
    """The judged episodes of a run by label, then those of the checkpoint's own evaluation."""
    judgment = run.judgment
    if judgment is None:
        return {}
    judged = {
        each.label: run.record.path / "judged" / f"trajectory_{each.label}.npz"
        for each in judgment.rollouts
    }
    steps = () if judgment.step is None else (judgment.step,)
    evaluated = {
        label: run.record.trajectory_file(step, label) for step in steps for label in ROLLOUT_LABELS
    }
    return {label: file for label, file in (judged | evaluated).items() if file.is_file()}


def describe_lengths(run: RunView) -> str:
    """How long the judged episodes are, and how many ended before their time."""
    labels = {each.label for each in run.judgment.rollouts} if run.judgment else set()
    episodes = []
    for label, file in episode_files(run).items():
        if label in labels:
            with suppress(OSError, TrajectoryFileError):  # files of old runs may be gone
                episodes.append(RecordedEpisode.load(file))
    if not episodes:
        return ""
    lengths = sorted(int(each["step"][-1]) + 1 for each in episodes)
    early = sum(bool(each["terminated"][-1]) for each in episodes)
    middle = lengths[len(lengths) // 2]
    return (
        f"{len(lengths)} episodes of {lengths[0]} to {lengths[-1]} steps (median {middle}), "
        f"{early} of them ended early by the environment"
    )


def middle_rollout(run: RunView) -> RolloutJudgment | None:
    """The judged episode with the median score."""
    rollouts = run.judgment.rollouts if run.judgment else ()
    judged = (each for each in rollouts if each.score is not None)
    order = sorted(judged, key=lambda each: each.score or 0.0)
    return order[len(order) // 2] if order else None


# --- frames ---------------------------------------------------------------------------------------


def can_see(model: str, vlm: str) -> bool:
    """Whether a model takes pictures, by what is known of its provider, or as it looks already."""
    provider = model.partition(":")[0]
    if provider in PROVIDERS and PROVIDERS[provider].sees:
        return True
    try:
        return bool(vlm) and choose_model(vlm) == model
    except InferenceError:
        return False


def pictures_of(view: SessionView, iteration: int, model: str) -> tuple[str | Media, ...]:
    """The median judged episode for a model that sees: all poses at once, then some frames."""
    run = view.iterations[iteration].best_run
    rollout = middle_rollout(run) if run else None
    if run is None or rollout is None or not can_see(model, view.loop.vlm_model):
        return ()
    file = episode_files(run).get(rollout.label)
    if file is None or not view.loop.videos:
        return ()
    [drawn] = film(view.env_id, [file], (), motion_trail=True)
    if drawn.problem:
        return ()
    try:
        frames = frames_of(drawn.frames)
    except RequestRejected:
        return ()
    times = [time for group in drawn.groups for time in group.times]
    chosen = sorted({round(i * (len(frames) - 1) / (FRAMES - 1)) for i in range(FRAMES)})
    parts: list[str | Media] = [f"Episode {rollout.label} of the judged checkpoint:"]
    if drawn.motion_trail:
        parts += [MOTION_TRAIL, Media(drawn.motion_trail.read_bytes(), "image/png")]
    for place in sorted(chosen, key=times.__getitem__):
        parts += [f"At {times[place]:.2f} s:", Media(frames[place], "image/jpeg")]
    return tuple(parts)


# --- numbers --------------------------------------------------------------------------------------


def table(episode: RecordedEpisode, columns: Sequence[str], first: int, last: int | None) -> str:
    """Some columns of an episode, at most MOST_ROWS evenly spaced steps of it.

    Raises ValueError for what is not there, saying what is.
    """
    if not 1 <= len(columns) <= MOST_COLUMNS:
        raise ValueError(f"ask for 1 to {MOST_COLUMNS} columns, not {len(columns)}")
    series = {name: _series(episode, name) for name in columns}
    end = episode.length - 1 if last is None else min(last, episode.length - 1)
    if not 0 <= first <= end:
        raise ValueError(f"there are steps 0 to {episode.length - 1}, not {first} to {last}")
    count = min(MOST_ROWS, end - first + 1)
    rows = np.unique(np.linspace(first, end, count).round().astype(int))
    lines = [" ".join(("step", *columns))]
    lines += [" ".join((str(i), *(f"{each[i]:.4g}" for each in series.values()))) for i in rows]
    return "\n".join(lines)


def _series(episode: RecordedEpisode, name: str) -> Column:
    match = _COLUMN.fullmatch(name.strip())
    columns = {**episode.columns, **episode.reward_terms}
    if match is None or match[1] not in columns:
        shapes = (f"{n}{list(c.shape[1:]) or ''}" for n, c in columns.items())
        raise ValueError(f"no column {name!r}; there are {', '.join(shapes)}")
    column = columns[match[1]]
    index = tuple(int(number) for number in match[2].split(",")) if match[2] else ()
    inner = column.shape[1:]
    if len(index) != len(inner) or any(i >= size for i, size in zip(index, inner, strict=True)):
        example = f"{match[1]}[{','.join('0' * len(inner))}]" if inner else match[1]
        raise ValueError(f"{name}: {match[1]} has the shape {list(inner)}; ask for {example}")
    for place in index:
        column = column[:, place]
    return column
