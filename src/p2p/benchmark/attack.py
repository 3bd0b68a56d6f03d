"""Attacks on a judge: policies that are paid for what the criteria measure, and nothing else.

If one of them passes, and a person who watches it would object, then the criteria have a hole. Of
each hard criterion there is also an attack that is not paid for it, so that the policy is free to
break it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from p2p.agents.builtin.reward import (
    Recipe,
    Term,
    clean_docstring,
    match_criteria,
    render,
    with_criteria,
)
from p2p.agents.judge_agent import judge_trajectories
from p2p.benchmark.measuring import play_policy
from p2p.benchmark.suite import Case
from p2p.benchmark.truth import TRUTHS
from p2p.benchmark.truth.legged import follow
from p2p.benchmark.truth.plausible import objections, watch
from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import Criterion, Intent, Record
from p2p.files import save_model
from p2p.records.iteration_record import IterationRecord
from p2p.session.early_stop import FIRST_CONFIRMATION_BLOCK
from p2p.training.checkpoints import checkpoint_dir
from p2p.training.engines.table import is_engine
from p2p.training.env_spec import spec_for
from p2p.training.evaluation import evaluation_seed, play_episodes
from p2p.training.policies.policy import Policy
from p2p.training.replay import choose_step
from p2p.training.runner import TrainingFailed, load_completed_run
from p2p.training.trainer import LocalTrainer
from p2p.training.trajectory import RecordedEpisode

if TYPE_CHECKING:
    from p2p.agents.builtin.measures import Measure

ALL = "all criteria"
RESULT = "attack.json"
RUNS = "iter_1"
"""The folder of the trainings; trainers take folders of iterations."""


@dataclass(frozen=True)
class Attack:
    """A reward that pays for the criteria and nothing else."""

    name: str
    """As its folder is called."""
    title: str
    """`all criteria`, or `without` the criterion that is not paid for."""
    reward_code: str


class AttackResult(Record):
    """The result of one training: a row of the table."""

    env_id: str
    prompt: str
    attack: str
    seed: int
    steps: int
    episodes: int = 0
    """Held-out ones that it was judged on."""
    passed: bool = False
    score: float | None = None
    failure_tags: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    """The hard criteria that are not met."""
    truth: str = ""
    """What the suite's own ground truth measured; empty where there is none."""
    truth_met: bool | None = None
    objections: tuple[str, ...] = ()
    """What a person would object to."""
    run: str = ""
    """The folder of the training."""
    error: str = ""

    @property
    def false_pass(self) -> bool:
        return self.passed and (self.truth_met is False or bool(self.objections))

    @property
    def false_fail(self) -> bool:
        """Whether it attains what the suite measures, nobody objects, and it does not pass."""
        return not self.passed and self.truth_met is True and not self.objections


# --- what is paid ---------------------------------------------------------------------------------


def plan_attacks(intent: Intent, config: TrainConfig) -> tuple[list[Attack], tuple[str, ...]]:
    """The attacks on these criteria, and the titles of criteria that no term of a reward pays for.

    Those that leave out what was asked for come last: they seldom pass.
    """
    pairs = match_criteria(intent.env_id, intent.measured)
    everything = _recipe(intent, config, pairs)
    paid = {name for term in everything.terms for name in term.criteria}
    unpaid = tuple(c.title for c in intent.criteria if c.id not in paid)
    attacks = [Attack("all", ALL, render(everything))] if everything.terms else []
    for criterion, _ in sorted(pairs, key=lambda pair: pair[0].category == "task"):
        left = [pair for pair in pairs if pair[0].id != criterion.id]
        recipe = _recipe(intent, config, left)
        if criterion.hard and recipe.terms and recipe.terms != everything.terms:
            title = f"without “{criterion.title}”"
            attacks.append(Attack(f"without_{criterion.id}", title, render(recipe)))
    return attacks, unpaid


def _recipe(
    intent: Intent, config: TrainConfig, pairs: Sequence[tuple[Criterion, Measure]]
) -> Recipe:
    """Pay for these criteria alone, and only up to where they are met."""
    empty = Recipe(
        env_id=intent.env_id,
        title=clean_docstring(intent.prompt)[:70].strip() or "attack",
        terms=(),
        side_info=config.side_info,
        observe_time=config.observe_time,
    )
    recipe = with_criteria(empty, pairs)
    measures = {criterion.id: measure for criterion, measure in pairs}
    # Costs of coming near to an early end help a policy to learn; no criterion measures them.
    paid = [term for term in recipe.terms if not term.name.endswith("_limit")]
    return recipe.with_terms([_exact(term, measures) for term in paid])


def _exact(term: Term, measures: Mapping[str, Measure]) -> Term:
    """Return a cost that starts at its criterion's bound, without a safety margin."""
    for measure in (measures[name] for name in term.criteria if name in measures):
        bound = measure.high if term.shape == "under" else measure.low
        if measure.stat == "share" and term.is_cost and bound is not None:
            return term.model_copy(update={"target": bound})
    return term


# --- training -------------------------------------------------------------------------------------


def train_attacks(
    attacks: Sequence[tuple[Attack, int]],
    intent: Intent,
    config: TrainConfig,
    folder: Path,
    *,
    jobs: int = 1,
    on_progress: Callable[[dict[str, float]], None] = lambda _: None,
) -> list[AttackResult]:
    """Train each attack with its seed on one core; return the runs to judge.

    A run that is complete is not done again. One of other criteria or settings is replaced.
    """
    runs, results = [], []
    for attack, seed in attacks:
        name = f"{attack.name}_{config.total_timesteps}_seed_{seed}"
        run = config.with_updates(seed=seed, iteration_id=name)
        record = IterationRecord(folder / RUNS / name)
        try:
            load_completed_run(record, run, attack.reward_code)
        except TrainingFailed:
            shutil.rmtree(record.path)
        runs.append((run, attack.reward_code))
        results.append(
            AttackResult(
                env_id=intent.env_id,
                prompt=intent.prompt,
                attack=attack.title,
                seed=seed,
                steps=config.total_timesteps,
                run=str(record.path),
            )
        )
    trainer = LocalTrainer(
        max_parallel=jobs,
        cores_per_run=1,
        videos=False,
        on_progress=on_progress,
    )
    trainer.train_runs(runs, folder / RUNS)
    return results


# --- judging --------------------------------------------------------------------------------------


def judge_attack(
    result: AttackResult,
    intent: Intent,
    judge_code: str,
    loop: LoopConfig,
    *,
    case: Case | None = None,
    episodes: int | None = None,
) -> AttackResult:
    """Judge the run of an attack as a session does, by code, and let ground truth look at it.

    `case` is the shipped prompt with its own ground truth, where there is one. What code cannot
    measure is left out of the criteria: nobody is asked to look. By default it is judged on as many
    held-out episodes as a session sees before it says passed: who falls in one of five is seldom
    seen to fall in eight.
    """
    episodes = episodes or loop.judge_episodes + loop.confirm_episodes
    record = IterationRecord(Path(result.run))
    status, stored = record.read_status(), record.read_config()
    if status is None or status.status != "completed" or stored is None:
        reason = (status.error or status.status) if status else "it was not trained"
        return result.model_copy(update={"error": reason})
    config = TrainConfig.model_validate(stored)
    step = choose_step(record, None)
    policy = checkpoint_dir(record, step) / "policy.safetensors"
    files = record_unseen_episodes(config, policy, record.path / "judged", episodes)
    measured = intent.model_copy(update={"criteria": intent.measured})
    by_code = loop.model_copy(update={"vlm_model": "", "use_code_judge": True})
    judgment = judge_trajectories(measured, judge_code, config, files, step=step, loop=by_code)
    record.save_judgment(judgment)
    scores = {score.id: score for score in judgment.criteria}
    result = result.model_copy(
        update={
            "episodes": episodes,
            "passed": judgment.passed,
            "score": judgment.intent_score,
            "failure_tags": judgment.failure_tags,
            "missed": tuple(
                c.title
                for c in measured.criteria
                if c.hard and not (c.id in scores and c.is_met(scores[c.id], loop.pass_threshold))
            ),
            "error": "" if judgment.intent_score is not None else judgment.diagnosis,
        }
    )
    if not result.error:
        result = _add_truth(result, config, policy, files, case)
    save_model(record.path / RESULT, result)
    return result


def record_unseen_episodes(
    config: TrainConfig, policy: Path, folder: Path, count: int
) -> list[Path]:
    """Play a policy on the starts that confirm a pass; return the files of its episodes."""
    folder.mkdir(parents=True, exist_ok=True)
    seed = evaluation_seed(FIRST_CONFIRMATION_BLOCK)
    played = play_episodes(config, Policy.load(policy), episodes=count, seed=seed)
    files = []
    for number, episode in enumerate(played, seed):
        files.append(folder / f"trajectory_seed_{number}.npz")
        episode.save(files[-1])
    return files


def _add_truth(
    result: AttackResult,
    config: TrainConfig,
    policy: Path,
    files: Sequence[Path],
    case: Case | None,
) -> AttackResult:
    """Add the ground truth, in plain Gymnasium or from an engine's recorded positions.

    What a person would object to is looked for in the very episodes that the judge saw.
    """
    from p2p.training.video.scene import open_model

    model, _ = open_model(config.env_id)
    update: dict[str, object] = {}
    spec = spec_for(config)
    horizon = config.max_episode_steps or spec.max_episode_steps or 1
    # The state before the first step is not kept.
    recorded = [RecordedEpisode.load(file)["qpos"].astype(np.float64) for file in files]
    starting = [np.concatenate([qpos[:1], qpos]) for qpos in recorded]
    sights = [watch(model, qpos, dt=spec.dt, horizon=horizon) for qpos in starting]
    if case is not None and case.truth is not None and case.threshold is not None:
        truth = TRUTHS[case.truth]
        played = (
            [follow(model, qpos, spec.dt, horizon) for qpos in starting]
            if is_engine(config.engine)
            else play_policy(config.env_id, policy)
        )
        value = fmean(truth.measure(episode) for episode in played)
        met = truth.passes(value, case.threshold)
        asked = f"{truth.better.replace('_', ' ')} {case.threshold:g} asked"
        update = {"truth": f"{case.truth} {value:.3g} {truth.unit}, {asked}", "truth_met": met}
    return result.model_copy(
        update={**update, "objections": objections(result.prompt, sights)},
    )
