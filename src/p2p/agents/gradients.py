"""Does a reward rise with the criteria? Asked of motions that a script plays, before any training.

Along a sweep (slower to faster, tilted to upright) the judge says how each criterion's score moves.
Where it clearly does, the reward's return has to move with it, or training is led elsewhere.

Cheats are screened the same way: of all scripted motions, the one that the judge scores best stands
for what is asked, and no cheat that it scores clearly lower may earn as much in training.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from statistics import fmean

from p2p.agents.judging.episodes import episode_summary
from p2p.agents.judging.judge_code import Summary, run_judge
from p2p.agents.judging.verdicts import task_score
from p2p.agents.known_behaviour import MARGIN, Earned, RewardMessage, Swept, run_reward
from p2p.config import TrainConfig
from p2p.contracts import Criterion, CriterionGradient, JudgeOpinion, Record
from p2p.training.evaluation import evaluation_seed, play_rounds
from p2p.training.scripted import POINTS, ScriptedEnv, scripted_env
from p2p.training.specs.quantities import QUANTITIES

SEED = evaluation_seed(4002)
"""A start that neither training nor any judgement sees."""
CLEAR = 0.1
"""Scores nearer to each other than this say nothing about which of two points is better."""
FEWEST_PAIRS = 3
RISES = 0.5
"""A correlation from which on a return rises with a score; it falls from the negative on."""
_FLAT = 1e-6
"""Of the largest return: returns nearer than this are equal."""
_SHOWN = 6
LEAST_TASK = 0.5
"""A motion that the judge scores lower on the task does not stand for what is asked."""
Place = tuple[str, int]
"""The name of a sweep, and which of its points."""


class JudgedPoint(Record):
    """What the judge gave for a point of a sweep."""

    score: float
    criteria: dict[str, float]
    task: float | None = None
    """Over the `task` criteria only."""


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


def find_asked(judged: Mapping[str, Sequence[JudgedPoint]]) -> Place | None:
    """The scripted motion that stands for what is asked; None: no one comes near it."""
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


def paid_cheats(
    asked: Place, judged: Mapping[str, JudgedPoint], earned: Mapping[str, float]
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
        f"{earned['']:.4g}; by the criteria they score {point.score:.2f} and {best.score:.2f}"
        for name, point in judged.items()
        if name in earned
        and earned[name] >= earned[""]
        and best.score - point.score >= MARGIN
        and (best.task or 0.0) >= (point.task or 0.0)
    )


# --- playing, judging and paying ------------------------------------------------------------------


def judge_sweeps(
    code: str,
    criteria: Sequence[Criterion],
    config: TrainConfig,
    *,
    of_root: bool = False,
) -> dict[str, list[JudgedPoint]]:
    """What the judge gives along every scripted motion; those that it cannot judge are left out.

    Empty where the environment has no scripted motions.
    """
    env = scripted_env(config, QUANTITIES)
    if env is None:
        return {}
    names: list[str] = []

    def batches() -> Iterator[int]:
        for sweep in env.each_sweep(of_root=of_root):
            names.append(sweep.name)
            yield POINTS

    judged = _judge_batches(env, batches(), code, criteria, config)
    sweeps = {name: judged[POINTS * k : POINTS * (k + 1)] for k, name in enumerate(names)}
    return {
        name: [point for point in points if point is not None]
        for name, points in sweeps.items()
        if None not in points
    }


def judge_cheats(
    code: str,
    criteria: Sequence[Criterion],
    config: TrainConfig,
    asked: Place,
) -> dict[str, JudgedPoint]:
    """What the judge gives for the motion that is asked, as "", and for each cheat at it."""
    env = scripted_env(config, QUANTITIES)
    if env is None:
        return {}
    motions = env.screened(asked)
    batches = env.each_batch([*motions.values()])
    judged = _judge_batches(env, batches, code, criteria, config)
    pairs = zip(motions, judged, strict=True)
    return {name: point for name, point in pairs if point is not None}


def _judge_batches(
    env: ScriptedEnv,
    batches: Iterator[int],
    code: str,
    criteria: Sequence[Criterion],
    config: TrainConfig,
) -> list[JudgedPoint | None]:
    """Play what the environment is set to, batch after batch, and let the judge see all of it."""
    played = config.with_updates(max_episode_steps=env.max_episode_steps)
    files: list[Path] = []
    summaries: list[Summary] = []
    with tempfile.TemporaryDirectory(prefix="p2p-sweeps-") as folder:
        for count in batches:
            for episode in play_rounds(env, "zero", episodes=count, seed=SEED):
                files.append(Path(folder) / f"{len(files)}.npz")
                episode.save(files[-1])
                summaries.append(episode_summary(played, episode, seed=SEED))
        env.close()
        opinions = run_judge(code, files, summaries, criteria)
    return [_point(opinion, criteria) for opinion in opinions]


def _point(opinion: JudgeOpinion, criteria: Sequence[Criterion]) -> JudgedPoint | None:
    if opinion.score is None:
        return None
    scores = {each.id: each.score for each in opinion.criteria if each.score is not None}
    task = task_score(opinion.criteria, criteria)
    return JudgedPoint(score=opinion.score, criteria=scores, task=task)


def pay_sweeps(
    code: str, config: TrainConfig, names: Sequence[str]
) -> dict[str, tuple[float, ...]]:
    """What the reward returns at each point of these sweeps, computed in the sandbox.

    A sweep on which it cannot be computed is left out; raises RewardFailed where its process sends
    something else.
    """
    messages = _call_worker(code, config, {"sweeps": list(names)})
    paid = {each.name: each.returns for each in messages if isinstance(each, Swept)}
    return {name: returns for name, returns in paid.items() if name in names}


def pay_cheats(code: str, config: TrainConfig, asked: Place) -> dict[str, float]:
    """What training pays for the motion that is asked, as "", and for each cheat at it.

    Unlike an evaluation, it ends where the reward's `failed` says so. Computed in the sandbox;
    raises RewardFailed as `pay_sweeps` does.
    """
    messages = _call_worker(code, config, {"asked": list(asked)})
    return {each.name: each.value for each in messages if isinstance(each, Earned)}


def _call_worker(code: str, config: TrainConfig, task: Mapping[str, object]) -> list[RewardMessage]:
    payload = {"config": config.model_dump(mode="json"), "code": code, "seed": SEED, **task}
    with tempfile.TemporaryDirectory(prefix="p2p-sweeps-") as folder:
        messages, _ = run_reward(config, Path(folder), payload)
    return messages
