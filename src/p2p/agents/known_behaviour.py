"""What is there before any training: robots that do nothing, act at random, or are the last best.

A reward and a judge can both be tried on them. Where they order them differently, the reward pays
for something else than what was asked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from p2p.agents.judging.episodes import episode_summary
from p2p.agents.judging.judge_code import run_judge
from p2p.agents.judging.verdicts import task_score
from p2p.config import TrainConfig
from p2p.contracts import Criterion, JudgeOpinion, Record
from p2p.sandbox import (
    SandboxedProcess,
    SandboxExit,
    UntrustedResultError,
    message_reader,
    run_worker,
)
from p2p.training.engines.facts import surroundings
from p2p.training.env_spec import EnvSpec, get_env_spec
from p2p.training.evaluation import evaluation_seed, record_episodes
from p2p.training.policies.policy import Policy
from p2p.training.scripted import POINTS
from p2p.training.trajectory import RecordedEpisode

Behaviour = Literal["zero", "random", "previous_best"]
IN_WORDS: Mapping[Behaviour, str] = {
    "zero": "zero actions",
    "random": "random actions",
    "previous_best": "the best policy so far",
}

WORKER = "p2p.agents.returns_worker"
EPISODES = 4
STEPS = 300
"""Enough to tell standing from falling; the whole horizon would cost seconds more."""
SEED = evaluation_seed(4000)
"""Starts that neither training nor any judgement sees."""
MAX_LINES = 5000
"""Of a process that plays a reward: of what it pays, and signs of life."""
EASY = 0.8
"""A score from which on a criterion is met without any skill."""
MARGIN = 0.15
"""Scores nearer to each other than this say nothing about which behaviour is better."""

_STILL = 1e-6
_SETTLED = 10
"""Steps at the end of an episode of zero actions."""
_FEW_BODIES = 8
"""Heights are told of so many bodies; of a humanoid's, the first ones."""

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Paid(Record):
    """What a reward gave for a behaviour."""

    type: Literal["paid"] = "paid"
    name: Behaviour
    returns: Annotated[tuple[Finite, ...], Field(min_length=1, max_length=100)]
    lengths: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, max_length=100)]
    terms: Annotated[dict[str, Finite], Field(max_length=1000)]

    @property
    def mean(self) -> float:
        return sum(self.returns) / len(self.returns)

    @property
    def per_step(self) -> float:
        return sum(self.returns) / sum(self.lengths)


class Swept(Record):
    """What a reward returned along a sweep."""

    type: Literal["swept"]
    name: str
    returns: Annotated[tuple[Finite, ...], Field(min_length=POINTS, max_length=POINTS)]


class Earned(Record):
    """What a reward pays in training for a cheat, or for what is asked."""

    type: Literal["earned"]
    name: str
    value: Finite


class _Raised(Record):
    """The reward raised under a behaviour."""

    type: Literal["failed"]
    name: Behaviour
    reason: str


class _Alive(Record):
    """A sign of life."""

    type: Literal["alive", "begun"]
    name: str = ""


RewardMessage = Paid | Swept | Earned | _Raised | _Alive
_MESSAGES: TypeAdapter[RewardMessage] = TypeAdapter(
    Annotated[RewardMessage, Field(discriminator="type")]
)


class Judged(Record):
    """What a judge gave for a behaviour."""

    score: float
    task: float
    """Over the `task` criteria only."""
    criteria: dict[str, float] = Field(default_factory=dict)
    """The mean score of each."""


class RewardFailed(Exception):
    """The reward did not get through; the message is for its author."""


def shortened(config: TrainConfig) -> TrainConfig:
    """The configuration for short episodes; whole ones where the criteria are about their time."""
    if config.observe_time:
        return config
    horizon = config.max_episode_steps or get_env_spec(config.env_id).max_episode_steps or STEPS
    return config.with_updates(max_episode_steps=min(STEPS, horizon))


@cache
def unaided(env_id: str) -> str:
    """What can be measured before any training: a table for whoever chooses thresholds."""
    config = shortened(TrainConfig(env_id=env_id))
    acts: tuple[Literal["zero", "random"], ...] = ("zero", "random")
    played = [record_episodes(config, act, episodes=EPISODES, seed=SEED) for act in acts]
    lines = [
        f"Measured before any training, {EPISODES} episodes each: mean (lowest to highest).",
        "The end of zero actions is the settled pose, unless it fell: ended early, or lies there.",
        "quantity | zero actions | random actions | end of zero actions",
    ]
    for label, pick in _measurable(get_env_spec(env_id)).items():
        values = [np.concatenate([pick(each) for each in episodes]) for episodes in played]
        if any(np.ptp(each) > _STILL for each in values):
            settled = np.mean([pick(each)[-_SETTLED:].mean() for each in played[0]])
            lines.append(
                " | ".join((label, *map(_spread, values), f"{round(float(settled), 3) + 0.0:.3g}"))
            )
    steps = (f"{sum(each.length for each in episodes) / EPISODES:.0f}" for episodes in played)
    lines.append(f"steps of {config.max_episode_steps} until the end | {' | '.join(steps)}")
    return "\n".join(lines)


def _measurable(spec: EnvSpec) -> dict[str, Callable[[RecordedEpisode], NDArray[np.float64]]]:
    """The numbers of a step that thresholds are mostly about, by how a criterion writes them."""

    def component(name: str, *index: int) -> Callable[[RecordedEpisode], NDArray[np.float64]]:
        at: tuple[Any, ...] = (slice(None), *index)
        return lambda episode: np.asarray(episode[name][at], np.float64)

    picks = {name: component(name) for name in ("x_velocity", "y_velocity")}
    picks = {name: pick for name, pick in picks.items() if name in spec.info_keys}
    for name, entry in spec.quantities.items():
        if name in ("foot_lowest_point", "foot_contact_force"):
            continue  # as high as foot_height says; forces come and go within a step
        unit = f" ({entry.unit})" if entry.unit else ""
        for index in np.ndindex(*entry.shape):
            place = dict(zip(entry.axes, index, strict=True))
            # Of bodies the heights, and of many the root's: the rest follows from the pose.
            if "bodies" in place and (
                name not in ("body_position", "body_up")
                or place["xyz"] != 2
                or not 1 <= place["bodies"] <= (_FEW_BODIES if name == "body_position" else 1)
            ):
                continue
            if name == "com" and place["xyz"] != 2:
                continue
            text = ", ".join("xyz"[i] if axis == "xyz" else str(i) for axis, i in place.items())
            picks[f"{name}[{text}]{unit}" if text else f"{name}{unit}"] = component(name, *index)
    return picks


def _spread(values: NDArray[np.float64]) -> str:
    mean, low, high = (
        round(float(each), 3) + 0.0 for each in (values.mean(), values.min(), values.max())
    )
    return f"{mean:.3g} ({low:.3g} to {high:.3g})"


def pay(code: str, config: TrainConfig, policy: Policy | None) -> dict[Behaviour, Paid]:
    """What the reward pays for each behaviour, computed in the sandbox; raises RewardFailed."""
    behaviours = ("zero", "random") if policy is None else ("zero", "random", "previous_best")
    with tempfile.TemporaryDirectory(prefix="p2p-rank-") as name:
        folder = Path(name)
        if policy is not None:
            policy.save(folder / "policy.safetensors")
        payload = {
            "config": shortened(config).model_dump(mode="json"),
            "code": code,
            "behaviours": behaviours,
            "policy": str(folder / "policy.safetensors"),
            "episodes": EPISODES,
            "seed": SEED,
        }
        messages, end = run_reward(config, folder, payload)
    paid = {message.name: message for message in messages if isinstance(message, Paid)}
    if paid.keys() != set(behaviours):
        raise RewardFailed(f"the reward's process ended ({end.reason}): {end.message}")
    return paid


def run_reward(
    config: TrainConfig, folder: Path, payload: Mapping[str, object]
) -> tuple[list[RewardMessage], SandboxExit]:
    """What the worker says of a reward, in the sandbox; raises RewardFailed."""
    messages: list[RewardMessage] = []

    def take(message: RewardMessage, _: SandboxedProcess) -> None:
        if isinstance(message, _Raised):
            raise RewardFailed(f"under {IN_WORDS[message.name]}: {message.reason}")
        messages.append(message)

    sandbox = surroundings(config.engine, folder, config.device).sandbox(
        folder, wall_seconds=240, stall_seconds=60, max_lines=MAX_LINES
    )
    try:
        worker = run_worker(
            WORKER, payload, sandbox, read=message_reader(_MESSAGES), on_message=take
        )
    except UntrustedResultError as error:
        raise RewardFailed(f"its process sent something that is no message: {error}") from None
    return messages, worker.wait()


def judge(
    code: str,
    criteria: Sequence[Criterion],
    config: TrainConfig,
    policy: Policy | None,
) -> dict[Behaviour, Judged]:
    """What the judge gives for each behaviour; those it cannot judge are left out."""
    short = shortened(config)
    acts: dict[Behaviour, Policy | Literal["zero", "random"]] = {"zero": "zero", "random": "random"}
    if policy is not None:
        acts["previous_best"] = policy
    results: dict[Behaviour, Judged] = {}
    with tempfile.TemporaryDirectory(prefix="p2p-rank-") as folder:
        files, summaries = [], []
        for name, act in acts.items():
            played = record_episodes(short, act, episodes=EPISODES, seed=SEED)
            for i, trajectory in enumerate(played):
                files.append(Path(folder) / f"{name}_{i}.npz")
                trajectory.save(files[-1])
                summaries.append(episode_summary(short, trajectory, seed=SEED + i))
        opinions = run_judge(code, files, summaries, criteria)
    for k, name in enumerate(acts):
        group = opinions[k * EPISODES : (k + 1) * EPISODES]
        scores = [opinion.score for opinion in group if opinion.score is not None]
        tasks = [task_score(opinion.criteria, criteria) for opinion in group]
        judged = [task for task in tasks if task is not None]
        if len(scores) == EPISODES == len(judged):
            results[name] = Judged(
                score=sum(scores) / EPISODES,
                task=sum(judged) / EPISODES,
                criteria=_mean_scores(group),
            )
    return results


class EasyCriteria(NamedTuple):
    """What of a task is met without any skill."""

    problems: tuple[str, ...]
    """Why the judge cannot be used."""
    notes: tuple[str, ...]
    """What a reviewer must know."""


def find_easy(
    opinions: Mapping[str, Sequence[JudgeOpinion]],
    criteria: Sequence[Criterion],
    *,
    idle_meets: bool,
) -> EasyCriteria:
    """The hard task criteria that zero and random actions meet, by the opinions of each.

    Either meeting all of them is a problem, unless each bounds something from above: a task of
    doing little. `idle_meets`: doing nothing may meet the task, as where it is to keep still.
    """
    task = [c for c in criteria if c.hard and c.category == "task" and not c.visual]
    problems, notes = [], []
    for name, each in opinions.items():
        scores = _mean_scores(each)
        met = [c for c in task if scores.get(c.id, 0.0) >= EASY]
        notes += [f"criterion {c.id}: {name} score {scores[c.id]:.2f} of {c.target}" for c in met]
        if len(met) < len(task) or all(c.comparison == "at_most" for c in task):
            continue
        text = f"{name} meet every hard task criterion ({', '.join(c.id for c in task)})"
        if idle_meets and name == "zero actions":
            notes.append(f"{text}: right only where the task is to keep still")
        else:
            problems.append(f"{text}: the judge does not measure what was asked")
    return EasyCriteria(tuple(problems), tuple(notes))


def _mean_scores(opinions: Sequence[JudgeOpinion]) -> dict[str, float]:
    by_id: dict[str, list[float]] = {}
    for opinion in opinions:
        for each in opinion.criteria:
            if each.score is not None:
                by_id.setdefault(each.id, []).append(each.score)
    return {name: sum(scores) / len(scores) for name, scores in by_id.items()}


def mismatches(
    paid: Mapping[Behaviour, Paid], judged: Mapping[Behaviour, Judged], *, horizon: int
) -> tuple[str, ...]:
    """Where the reward orders these behaviours against the criteria, in words for its author."""
    pairs = (_mismatch(better, worse, paid, judged) for better in judged for worse in judged)
    return tuple(text for text in (*pairs, _early_end(paid, horizon)) if text)


def _mismatch(
    better: Behaviour,
    worse: Behaviour,
    paid: Mapping[Behaviour, Paid],
    judged: Mapping[Behaviour, Judged],
) -> str:
    """By the whole rubric and by its task alone: only what both agree on can be held against it."""
    a, b = judged[better], judged[worse]
    if a.score - b.score < MARGIN or a.task < b.task or paid[better].mean > paid[worse].mean:
        return ""
    return (
        f"the reward puts the worse behaviour first: by the criteria {IN_WORDS[better]} score "
        f"{a.score:.2f} and {IN_WORDS[worse]} {b.score:.2f}, but the reward pays "
        f"{paid[better].mean:.4g} and {paid[worse].mean:.4g} for an episode of "
        f"{_steps(paid[better])} and {_steps(paid[worse])} steps. "
        f"Criteria: {_apart(a, b)}. "
        f"Terms: {_terms(paid[better])} against {_terms(paid[worse])}"
    )


def _apart(a: Judged, b: Judged) -> str:
    """The criteria that tell two behaviours apart, those that do it most first."""
    both = {name: (score, b.criteria.get(name, 0.0)) for name, score in a.criteria.items()}
    order = sorted(both, key=lambda name: -abs(both[name][0] - both[name][1]))
    differ = [f"{n} {both[n][0]:.2f} against {both[n][1]:.2f}" for n in order[:4]]
    return ", ".join(differ) or "none"


def _steps(paid: Paid) -> str:
    return f"{sum(paid.lengths) / len(paid.lengths):.0f}"


def _early_end(paid: Mapping[Behaviour, Paid], horizon: int) -> str:
    """Where a fall ends the episode and every step costs, falling at once is the best policy."""
    ends = any(length < horizon for each in paid.values() for length in each.lengths)
    if not ends or any(each.per_step >= 0 for each in paid.values()):
        return ""
    steps = ", ".join(f"{each.per_step:.4g} under {IN_WORDS[n]}" for n, each in paid.items())
    return (
        f"an episode can end early here, and each step costs more than it pays ({steps}): the "
        "reward is highest for ending the episode at once. Let staying in it pay"
    )


def _terms(paid: Paid) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in paid.terms.items()) or "none"


def in_words(paid: Mapping[Behaviour, Paid]) -> str:
    """What the reward pays, one line for each behaviour."""
    return "\n".join(
        f"return under {IN_WORDS[name]}: {each.mean:.4g} over {_steps(each)} steps ({_terms(each)})"
        for name, each in paid.items()
    )
