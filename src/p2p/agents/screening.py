"""What a reward pays and a judge gives before any training, side by side.

Known behaviour first: robots that do nothing, act at random, or are the last best. Then motions
that a script plays. Along a sweep (slower to faster, tilted to upright) the judge says how each
criterion's score moves; where it clearly does, the return has to move with it, or training is led
elsewhere. Of all scripted motions, the one that the judge scores best stands for what is asked, and
no cheat that it scores clearly lower may earn as much in training.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate, permutations
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from p2p.agents.judge_code import episode_summary, run_judge
from p2p.agents.verdicts import task_score
from p2p.config import TrainConfig
from p2p.contracts import Criterion, CriterionGradient, JudgeOpinion, Record
from p2p.records.formatting import format_score
from p2p.sandbox import (
    SandboxedProcess,
    SandboxExit,
    UntrustedResultError,
    message_reader,
    run_worker,
)
from p2p.training.engines.facts import surroundings
from p2p.training.engines.table import is_engine
from p2p.training.env_spec import EnvSpec, get_env_spec
from p2p.training.envs.registry import TRIALS
from p2p.training.evaluation import evaluation_seed, record_behaviours, record_episodes
from p2p.training.policies.policy import Policy
from p2p.training.reward_loader import find_hanging_code
from p2p.training.scripted import POINTS, play_scripts, script_steps
from p2p.training.trajectory import RecordedEpisode

Behaviour = Literal["zero", "random", "previous_best"]
IN_WORDS: Mapping[str, str] = {
    "zero": "zero actions",
    "random": "random actions",
    "previous_best": "the best policy so far",
}
Place = tuple[str, int]
"""The name of a sweep, and which of its points."""

WORKER = "p2p.agents.returns_worker"
EPISODES = 4
STEPS = 300
"""Enough to tell standing from falling; the whole horizon would cost seconds more."""
SEED, SCRIPT_SEED = evaluation_seed(4000), evaluation_seed(4002)
"""Starts that neither training nor any judgement sees."""
MAX_LINES = 5000
"""Of a process that plays a reward: of what it pays, and signs of life."""
WALL_SECONDS, STALL_SECONDS = 240.0, 60.0
EASY = 0.8
"""A score from which on a criterion is met without any skill."""
MARGIN, CLEAR = 0.15, 0.1
"""Scores of two behaviours, or of two points of a sweep, that are nearer than this tell nothing."""
FEWEST_PAIRS = 3
RISES = 0.5
"""A correlation from which on a return rises with a score; it falls from the negative on."""
LEAST_TASK = 0.5
"""A motion that the judge scores lower on the task does not stand for what is asked."""
_FLAT = 1e-6
"""Of the largest return: returns nearer than this are equal."""
_SHOWN = 6
_STILL = 1e-6
_SETTLED = 10
"""Steps at the end of an episode of zero actions."""
_FEW_BODIES = 8
"""Heights are told of so many bodies; of a humanoid's, the first ones."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
Length = Annotated[int, Field(ge=1)]


class Paid(Record):
    """What a reward returned: in episodes of a behaviour, along a sweep, or for a cheat."""

    type: Literal["paid"] = "paid"
    name: str
    returns: Annotated[tuple[Finite, ...], Field(min_length=1, max_length=100)]
    lengths: Annotated[tuple[Length, ...], Field(max_length=100)] = ()
    """Of the episodes of a behaviour; `terms` are their means."""
    terms: Annotated[dict[str, Finite], Field(max_length=1000)] = Field(default_factory=dict)

    @property
    def mean(self) -> float:
        return sum(self.returns) / len(self.returns)

    @property
    def per_step(self) -> float:
        return sum(self.returns) / sum(self.lengths)

    @property
    def steps(self) -> float:
        return sum(self.lengths) / len(self.lengths)


class _Raised(Record):
    """The reward raised under a behaviour."""

    type: Literal["failed"]
    name: Behaviour
    reason: str


class _Alive(Record):
    """A sign of life."""

    type: Literal["alive", "begun"]
    name: str = ""
    reward_seconds: float = 0.0


_Message = Annotated[Paid | _Raised | _Alive, Field(discriminator="type")]
_MESSAGES: TypeAdapter[Paid | _Raised | _Alive] = TypeAdapter(_Message)


class Judged(Record):
    """What a judge gave for a behaviour, or for a point of a sweep."""

    score: float
    task: float | None = None
    """Over the `task` criteria only."""
    criteria: dict[str, float] = Field(default_factory=dict)


class RewardFailed(Exception):
    """The reward did not get through; the message is for its author."""


class EnvironmentTooSlow(RewardFailed):
    """The environment took the time, so the reward was not played through."""


# --- what is known of the robot -------------------------------------------------------------------


def shorten_episodes(config: TrainConfig) -> TrainConfig:
    """The configuration for short episodes; whole ones where the criteria are about their time."""
    if config.observe_time:
        return config
    horizon = config.max_episode_steps or get_env_spec(config.env_id).max_episode_steps or STEPS
    return config.with_updates(max_episode_steps=min(STEPS, horizon))


@cache
def describe_unaided(env_id: str) -> str:
    """Return what can be measured before any training: a table for whoever chooses thresholds."""
    config = shorten_episodes(TrainConfig(env_id=env_id))
    acts: tuple[Literal["zero", "random"], ...] = ("zero", "random")
    episodes = record_behaviours(config, acts, episodes=EPISODES, seed=SEED)
    played = [episodes[:EPISODES], episodes[EPISODES:]]
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
    if not spec.feet:  # of a pole or an arm, its joints say most
        picks |= {
            f"qpos[{j.qpos_address}] ({j.name}, {j.unit})": component("qpos", j.qpos_address)
            for j in spec.joints
            if j.qpos_size == 1
        }
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


# --- paying and judging ---------------------------------------------------------------------------


def pay_behaviours(code: str, config: TrainConfig, policy: Policy | None) -> dict[str, Paid]:
    """What the reward pays for each behaviour, computed in the sandbox; raises RewardFailed."""
    behaviours = ("zero", "random") if policy is None else ("zero", "random", "previous_best")
    task = {"behaviours": behaviours, "episodes": EPISODES, "seed": SEED}
    paid, end = _run_reward(code, shorten_episodes(config), task, policy)
    if paid.keys() != set(behaviours) or not all(each.lengths for each in paid.values()):
        raise RewardFailed(f"the reward's process ended ({end.reason}): {end.message}")
    return paid


def pay_sweeps(
    code: str, config: TrainConfig, names: Sequence[str]
) -> dict[str, tuple[float, ...]]:
    """Return what the reward returns at each point of these sweeps, computed in the sandbox.

    A sweep on which it cannot be computed is left out; raises RewardFailed where its process sends
    something else.
    """
    paid, _ = _run_reward(code, config, {"sweeps": list(names), "seed": SCRIPT_SEED})
    if any(len(each.returns) != POINTS for each in paid.values()):
        raise RewardFailed(f"its process sent something that is no message: not {POINTS} returns")
    return {name: paid[name].returns for name in names if name in paid}


def pay_cheats(code: str, config: TrainConfig, asked: Place) -> dict[str, float]:
    """Return what training pays for the motion that is asked, as "", and for each cheat at it.

    Unlike an evaluation, it ends where the reward's `failed` says so. Computed in the sandbox;
    raises RewardFailed as `pay_sweeps` does.
    """
    paid, _ = _run_reward(code, config, {"asked": list(asked), "seed": SCRIPT_SEED})
    return {name: each.mean for name, each in paid.items()}


def _run_reward(
    code: str, config: TrainConfig, task: Mapping[str, object], policy: Policy | None = None
) -> tuple[dict[str, Paid], SandboxExit]:
    """Run the reward in the sandbox and return the returns by name; raises RewardFailed."""
    paid: dict[str, Paid] = {}
    reward_seconds = 0.0

    def take(message: Paid | _Raised | _Alive, _: SandboxedProcess) -> None:
        nonlocal reward_seconds
        if isinstance(message, _Alive):
            reward_seconds = max(reward_seconds, message.reward_seconds)
        if isinstance(message, _Raised):
            raise RewardFailed(f"under {IN_WORDS[message.name]}: {message.reason}")
        if isinstance(message, Paid):
            paid[message.name] = message

    with tempfile.TemporaryDirectory(prefix="p2p-screening-") as name:
        folder = Path(name)
        file = folder / "policy.safetensors"
        if policy is not None:
            policy.save(file)
        payload = {
            "config": config.model_dump(mode="json"),
            "code": code,
            "policy": str(file),
            "stall_seconds": STALL_SECONDS,
        }
        sandbox = surroundings(config, folder).sandbox(
            folder,
            wall_seconds=WALL_SECONDS,
            stall_seconds=STALL_SECONDS,
            max_lines=MAX_LINES,
            warm=TRIALS,
        )
        try:
            worker = run_worker(
                WORKER,
                {**payload, **task},
                sandbox,
                read=message_reader(_MESSAGES),
                on_message=take,
            )
        except UntrustedResultError as error:
            raise RewardFailed(f"its process sent something that is no message: {error}") from None
        end = worker.wait()
        if end.reason == "stalled":
            culprit, where = find_hanging_code(end.output_tail)
            if culprit == "environment":
                raise EnvironmentTooSlow(f"{where} takes more than {STALL_SECONDS:g} s")
        elif end.reason == "wall clock" and reward_seconds < WALL_SECONDS / 2:
            raise EnvironmentTooSlow(f"the environment takes more than {WALL_SECONDS:g} s")
        return paid, end


def judge_behaviours(
    code: str, criteria: Sequence[Criterion], config: TrainConfig, policy: Policy | None
) -> dict[str, Judged]:
    """Return what the judge gives for each behaviour; those it cannot judge are left out."""
    short = shorten_episodes(config)
    acts = ["zero", "random"]
    episodes = record_behaviours(short, ("zero", "random"), episodes=EPISODES, seed=SEED)
    if policy is not None:
        acts.append("previous_best")
        episodes += record_episodes(short, policy, episodes=EPISODES, seed=SEED)
    played = ((SEED + i % EPISODES, episode) for i, episode in enumerate(episodes))
    opinions = _judge_episodes(code, criteria, short, played)
    results = {}
    for k, name in enumerate(acts):
        group = opinions[k * EPISODES : (k + 1) * EPISODES]
        points = [point for each in group if (point := _point(each, criteria)) is not None]
        tasks = [point.task for point in points if point.task is not None]
        if len(points) == EPISODES == len(tasks):
            score = fmean(point.score for point in points)
            results[name] = Judged(score=score, task=fmean(tasks), criteria=_mean_scores(group))
    return results


def _judge_episodes(
    code: str,
    criteria: Sequence[Criterion],
    config: TrainConfig,
    played: Iterable[tuple[int, RecordedEpisode]],
) -> list[JudgeOpinion]:
    """The judge's opinions of episodes, each with its seed."""
    episodes: list[RecordedEpisode] = []
    summaries = []
    for seed, episode in played:
        episodes.append(episode)
        summaries.append(episode_summary(config, episode, seed=seed))
    if not episodes:
        return []
    joined = RecordedEpisode.join(episodes)
    ends = accumulate(episode.length for episode in episodes)
    rows = [(end - episode.length, end) for end, episode in zip(ends, episodes, strict=True)]
    with tempfile.TemporaryDirectory(prefix="p2p-screening-") as folder:
        kept = episodes if joined is None else [joined]
        files = [Path(folder) / f"{number}.npz" for number in range(len(kept))]
        for file, each in zip(files, kept, strict=True):
            each.save(file, lasting=False)
        if joined is None:
            return run_judge(code, files, summaries, criteria)
        return run_judge(code, files * len(episodes), summaries, criteria, rows=rows)


def judge_sweeps(
    code: str, criteria: Sequence[Criterion], config: TrainConfig, *, of_root: bool = False
) -> dict[str, list[Judged]]:
    """What the judge gives along every scripted motion; those that it cannot judge are left out.

    Empty where the environment has no scripted motions.
    """
    sweeps: dict[str, list[Judged | None]] = {}
    for name, point in _judge_scripts(code, criteria, config, {"of_root": of_root}):
        sweeps.setdefault(name, []).append(point)
    return {
        name: [point for point in points if point is not None]
        for name, points in sweeps.items()
        if None not in points
    }


def judge_cheats(
    code: str, criteria: Sequence[Criterion], config: TrainConfig, asked: Place
) -> dict[str, Judged]:
    """Return what the judge gives for the motion that is asked, as "", and for each cheat at it."""
    judged = _judge_scripts(code, criteria, config, {"motion": asked})
    return {name: point for name, point in judged if point is not None}


def _judge_scripts(
    code: str, criteria: Sequence[Criterion], config: TrainConfig, asked: Mapping[str, object]
) -> list[tuple[str, Judged | None]]:
    """Return what the judge gives for the motions that `play_scripts` plays, by name."""
    names: list[str] = []

    def play_asked() -> Iterator[tuple[int, RecordedEpisode]]:
        for name, episode in play_scripts(config, asked, seed=SCRIPT_SEED):
            names.append(name)
            yield SCRIPT_SEED, episode

    if is_engine(config.engine):
        return []
    spec = get_env_spec(config.env_id)
    horizon = config.max_episode_steps or spec.max_episode_steps or STEPS
    config = config.with_updates(max_episode_steps=script_steps(spec.dt, horizon))
    opinions = _judge_episodes(code, criteria, config, play_asked())
    return [(name, _point(each, criteria)) for name, each in zip(names, opinions, strict=True)]


def _point(opinion: JudgeOpinion, criteria: Sequence[Criterion]) -> Judged | None:
    if opinion.score is None:
        return None
    scores = {each.id: each.score for each in opinion.criteria if each.score is not None}
    task = task_score(opinion.criteria, criteria)
    return Judged(score=opinion.score, criteria=scores, task=task)


def _mean_scores(opinions: Sequence[JudgeOpinion]) -> dict[str, float]:
    by_id: dict[str, list[float]] = {}
    for opinion in opinions:
        for each in opinion.criteria:
            if each.score is not None:
                by_id.setdefault(each.id, []).append(each.score)
    return {name: fmean(scores) for name, scores in by_id.items()}


# --- known behaviour ------------------------------------------------------------------------------


class EasyCriteria(NamedTuple):
    """What of a task is met without any skill."""

    task: tuple[Criterion, ...]
    """The hard task criteria that code judges."""
    met_by: str
    """The actions that meet all of them, and should not; empty: none."""
    notes: tuple[str, ...]
    """What a reviewer must know."""


def find_easy(
    opinions: Mapping[str, Sequence[JudgeOpinion]],
    criteria: Sequence[Criterion],
    *,
    idle_meets: bool,
) -> EasyCriteria:
    """The hard task criteria that zero and random actions meet, by the opinions of each.

    Neither may meet all of them, unless each bounds something from above: a task of doing little.
    `idle_meets`: doing nothing may meet the task, as where it is to keep still.
    """
    task = [c for c in criteria if c.hard and c.category == "task" and not c.visual]
    met_by, notes = [], []
    for name, each in opinions.items():
        scores = _mean_scores(each)
        met = [c for c in task if scores.get(c.id, 0.0) >= EASY]
        notes += [f"{name} score {format_score(scores[c.id])} on {c.id} ({c.target})" for c in met]
        if len(met) < len(task) or all(map(_bounds_from_above, task)):
            continue
        if idle_meets and name == "zero actions":
            text = f"{name} meet every hard task criterion ({', '.join(c.id for c in task)})"
            notes.append(f"{text}: right only where the task is to keep still")
        else:
            met_by.append(name)
    return EasyCriteria(tuple(task), " and ".join(met_by), tuple(notes))


def _bounds_from_above(criterion: Criterion) -> bool:
    """Whether it asks for little of something; at most -0.3 m/s asks for much, the other way."""
    return criterion.comparison == "at_most" and (bool(criterion.event) or criterion.threshold > 0)


def find_mismatches(
    paid: Mapping[str, Paid], judged: Mapping[str, Judged], *, horizon: int
) -> tuple[str, ...]:
    """Where the reward orders these behaviours against the criteria, in words for its author."""
    pairs = (_mismatch(better, worse, paid, judged) for better in judged for worse in judged)
    return tuple(text for text in (*pairs, _early_end(paid, horizon)) if text)


def _mismatch(
    better: str,
    worse: str,
    paid: Mapping[str, Paid],
    judged: Mapping[str, Judged],
) -> str:
    """By the whole rubric and by its task alone: only what both agree on can be held against it."""
    a, b = judged[better], judged[worse]
    if (
        a.score - b.score < MARGIN
        or (a.task or 0.0) < (b.task or 0.0)
        or paid[better].mean > paid[worse].mean
    ):
        return ""
    return (
        f"the reward puts the worse behaviour first: by the criteria {IN_WORDS[better]} score "
        f"{format_score(a.score)} and {IN_WORDS[worse]} {format_score(b.score)}, but the reward "
        f"pays {paid[better].mean:.4g} and {paid[worse].mean:.4g} for an episode of "
        f"{paid[better].steps:.0f} and {paid[worse].steps:.0f} steps. "
        f"Criteria: {_find_separating(a, b)}. "
        f"Terms: {_terms(paid[better])} against {_terms(paid[worse])}"
    )


def _find_separating(a: Judged, b: Judged) -> str:
    """Return the criteria that separate two behaviours, the clearest first."""
    both = {name: (score, b.criteria.get(name, 0.0)) for name, score in a.criteria.items()}
    order = sorted(both, key=lambda name: -abs(both[name][0] - both[name][1]))
    differ = [
        f"{n} {format_score(both[n][0])} against {format_score(both[n][1])}" for n in order[:4]
    ]
    return ", ".join(differ) or "none"


def _early_end(paid: Mapping[str, Paid], horizon: int) -> str:
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


def describe_paid(paid: Mapping[str, Paid]) -> str:
    """Return what the reward pays, one line for each behaviour."""
    return "\n".join(
        f"return under {IN_WORDS[name]}: {each.mean:.4g} over {each.steps:.0f} steps "
        f"({_terms(each)})"
        for name, each in paid.items()
    )


# --- scripted motions -----------------------------------------------------------------------------


def find_telling_pairs(points: Sequence[Judged]) -> dict[str, list[tuple[int, int]]]:
    """Return by criterion the pairs (better, worse) of points that can test a reward.

    The better one scores higher in all, and clearly lower in no criterion: what one criterion gains
    at the cost of another is not held against a reward. Criteria with fewer than FEWEST_PAIRS are
    left out.
    """
    pairs: dict[str, list[tuple[int, int]]] = {}
    for i, j in permutations(range(len(points)), 2):
        better, worse = points[i], points[j]
        gains = {
            name: score - worse.criteria.get(name, score) for name, score in better.criteria.items()
        }
        if better.score <= worse.score or min(gains.values(), default=0.0) <= -CLEAR:
            continue
        for name, gain in gains.items():
            if gain >= CLEAR:
                pairs.setdefault(name, []).append((i, j))
    return {name: each for name, each in pairs.items() if len(each) >= FEWEST_PAIRS}


def rank_correlation(pairs: Sequence[tuple[int, int]], returns: Sequence[float]) -> float:
    """The mean over pairs: 1 where the better one pays more, -1 where less, 0 where the same."""
    equal = _FLAT * max(map(abs, returns))
    gaps = [returns[better] - returns[worse] for better, worse in pairs]
    return fmean((gap > equal) - (gap < -equal) for gap in gaps)


def gradients(
    judged: Mapping[str, Sequence[Judged]], paid: Mapping[str, Sequence[float]]
) -> tuple[CriterionGradient, ...]:
    """Of every motion that was paid for, with every criterion whose score it moves."""
    return tuple(
        CriterionGradient(
            motion=motion, criterion=name, correlation=rank_correlation(pairs, paid[motion])
        )
        for motion, points in judged.items()
        if motion in paid
        for name, pairs in find_telling_pairs(points).items()
    )


def rising_share(found: Sequence[CriterionGradient]) -> float | None:
    """Return the share of motions whose return rises with a criterion; None if unknown."""
    return fmean(each.correlation >= RISES for each in found) if found else None


def describe_falling(found: Sequence[CriterionGradient]) -> list[str]:
    """Return where the return falls while a criterion's score rises, the clearest first."""
    wrong = sorted(
        (each for each in found if each.correlation <= -RISES), key=lambda each: each.correlation
    )
    return [
        f"the reward falls while {each.criterion!r} rises: {each.motion}" for each in wrong[:_SHOWN]
    ]


def describe_gradients(found: Sequence[CriterionGradient]) -> str:
    """Return how many rise, and those that fall; empty where no motion tells."""
    if not found:
        return ""
    rising = sum(each.correlation >= RISES for each in found)
    count = f"along scripted motions it rises with the criteria in {rising} of {len(found)} cases"
    return "\n".join((count, *describe_falling(found)))


def find_best_point(judged: Mapping[str, Sequence[Judged]]) -> Place | None:
    """Return the scripted motion that does the task best, or None if none comes near it."""
    ranked = [
        (point.task, point.score, (name, place))
        for name, points in judged.items()
        for place, point in enumerate(points)
        if point.task is not None
    ]
    if not ranked:
        return None
    task, _, asked = max(ranked, key=lambda each: each[:2])  # of equals the first: on the ground
    return asked if task >= LEAST_TASK else None


def describe_paid_cheats(
    asked: Place, judged: Mapping[str, Judged], earned: Mapping[str, float]
) -> tuple[str, ...]:
    """The cheats that earn as much as what is asked, in words for the reward's author.

    Only those that the judge scores clearly lower, and not higher on the task.
    """
    best = judged.get("")
    if best is None or "" not in earned:
        return ()
    return tuple(
        f"a cheat earns as much as what is asked: {name} is paid {earned[name]:.4g} for an "
        f"episode of training, and point {asked[1] + 1} of {POINTS} of {asked[0]!r} "
        f"{earned['']:.4g}; by the criteria they score "
        f"{format_score(point.score)} and {format_score(best.score)}"
        for name, point in judged.items()
        if name in earned
        and earned[name] >= earned[""]
        # Of what the scripted motion reaches: its feet slide, so no judge gives it all.
        and point.score <= (1.0 - MARGIN) * best.score
        and (best.task or 0.0) >= (point.task or 0.0)
    )
