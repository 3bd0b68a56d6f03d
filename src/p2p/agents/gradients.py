"""Does a reward rise with the criteria? Asked of motions that a script plays, before any training.

Along a sweep (slower to faster, tilted to upright) the judge says how each criterion's score moves.
Where it clearly does, the reward's return has to move with it, or training is led elsewhere.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from p2p.agents.judging.episodes import episode_summary
from p2p.agents.judging.judge_code import Summary, run_judge
from p2p.agents.known_behaviour import WORKER, Finite, RewardFailed, sandbox_for
from p2p.config import TrainConfig
from p2p.contracts import Criterion, CriterionGradient, JudgeOpinion, Record
from p2p.sandbox import UntrustedResultError, read_message, start
from p2p.training.evaluation import evaluation_seed, play_rounds
from p2p.training.scripted import POINTS, scripted_env
from p2p.training.specs.quantities import QUANTITIES

SEED = evaluation_seed(4001)
"""A start that neither training nor any judgement sees."""
CLEAR = 0.1
"""Scores nearer to each other than this say nothing about which of two points is better."""
FEWEST_PAIRS = 3
RISES = 0.5
"""A correlation from which on a return rises with a score; it falls from the negative on."""
_FLAT = 1e-6
"""Of the largest return: returns nearer than this are equal."""
_SHOWN = 6


class JudgedPoint(Record):
    """What the judge gave for a point of a sweep."""

    score: float
    criteria: dict[str, float]


class _Swept(Record):
    """What a reward returned along a sweep."""

    type: Literal["swept"]
    name: str
    returns: Annotated[tuple[Finite, ...], Field(min_length=POINTS, max_length=POINTS)]


# --- pure functions -------------------------------------------------------------------------------


def speaking(points: Sequence[JudgedPoint]) -> dict[str, list[tuple[int, int]]]:
    """By criterion: the pairs (better, worse) of points that tell something about a reward.

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
    judged: Mapping[str, Sequence[JudgedPoint]], paid: Mapping[str, Sequence[float]]
) -> tuple[CriterionGradient, ...]:
    """Of every motion that was paid for, with every criterion whose score it moves."""
    return tuple(
        CriterionGradient(
            motion=motion, criterion=name, correlation=rank_correlation(pairs, paid[motion])
        )
        for motion, points in judged.items()
        if motion in paid
        for name, pairs in speaking(points).items()
    )


def rising_share(found: Sequence[CriterionGradient]) -> float | None:
    """The share of motions along which the return rises with a criterion; None: none tells."""
    return fmean(each.correlation >= RISES for each in found) if found else None


def falling(found: Sequence[CriterionGradient]) -> list[str]:
    """Where the return falls while a criterion's score rises, the clearest first."""
    wrong = sorted(
        (each for each in found if each.correlation <= -RISES), key=lambda each: each.correlation
    )
    return [
        f"the reward falls while {each.criterion!r} rises: {each.motion}" for each in wrong[:_SHOWN]
    ]


def in_words(found: Sequence[CriterionGradient]) -> str:
    """How many rise, and those that fall; empty where no motion tells."""
    if not found:
        return ""
    rising = sum(each.correlation >= RISES for each in found)
    count = f"along scripted motions it rises with the criteria in {rising} of {len(found)} cases"
    return "\n".join((count, *falling(found)))


# --- playing, judging and paying ------------------------------------------------------------------


def judge_sweeps(
    code: str, criteria: Sequence[Criterion], config: TrainConfig, *, unsafe_local: bool = False
) -> dict[str, list[JudgedPoint]]:
    """What the judge gives along every scripted motion; those that it cannot judge are left out.

    Empty where the environment has no scripted motions.
    """
    env = scripted_env(config, QUANTITIES)
    if env is None:
        return {}
    played = config.with_updates(max_episode_steps=env.max_episode_steps)
    names: list[str] = []
    files: list[Path] = []
    summaries: list[Summary] = []
    with tempfile.TemporaryDirectory(prefix="p2p-sweeps-") as folder:
        for sweep in env.each_sweep():
            names.append(sweep.name)
            for episode in play_rounds(env, "zero", episodes=POINTS, seed=SEED):
                files.append(Path(folder) / f"{len(files)}.npz")
                episode.save(files[-1])
                summaries.append(episode_summary(played, episode, seed=SEED))
        env.close()
        opinions = run_judge(code, files, summaries, criteria, unsafe_local=unsafe_local)
    sweeps = {
        name: [_point(each) for each in opinions[POINTS * k : POINTS * (k + 1)]]
        for k, name in enumerate(names)
    }
    return {
        name: [point for point in points if point is not None]
        for name, points in sweeps.items()
        if None not in points
    }


def _point(opinion: JudgeOpinion) -> JudgedPoint | None:
    if opinion.score is None:
        return None
    scores = {each.id: each.score for each in opinion.criteria if each.score is not None}
    return JudgedPoint(score=opinion.score, criteria=scores)


def pay_sweeps(
    code: str, config: TrainConfig, names: Sequence[str], *, unsafe_local: bool = False
) -> dict[str, tuple[float, ...]]:
    """What the reward returns at each point of these sweeps, computed in the sandbox.

    A sweep on which it cannot be computed is left out; raises RewardFailed where its process sends
    something else.
    """
    paid: dict[str, tuple[float, ...]] = {}
    with tempfile.TemporaryDirectory(prefix="p2p-sweeps-") as folder:
        sandbox = sandbox_for(config, Path(folder), unsafe_local=unsafe_local)
        payload = {
            "config": config.model_dump(mode="json"),
            "code": code,
            "sweeps": list(names),
            "seed": SEED,
        }
        with start(WORKER, payload, sandbox) as process:
            for line in process.lines():
                if (swept := _read(line)) is not None:
                    paid[swept.name] = swept.returns
            process.wait()
    return {name: returns for name, returns in paid.items() if name in names}


def _read(line: bytes) -> _Swept | None:
    try:
        message = read_message(line, finite=False)
        return _Swept.model_validate(message) if message["type"] == "swept" else None
    except (UntrustedResultError, KeyError, TypeError, ValidationError) as error:
        raise RewardFailed(f"its process sent something that is no message: {error}") from None
