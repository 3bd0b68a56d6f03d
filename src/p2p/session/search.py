"""One reward out of several: successive halving of candidates by what their policies do.

Candidates are screened when they are written. They are then trained rung by rung, each from where
it stood, and halved by the code judge's scores of their evaluation episodes. Every rung leaves its
result in search.json, so a search that was killed resumes with the rung it was in. A candidate's
training is that of a run of its own: the winner's is bit for bit the run it would have been alone.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from p2p.agents.reward_source import reward_digest, reweight, terms_serving
from p2p.agents.screening import describe_falling, rising_share
from p2p.contracts import (
    AuthoredCode,
    AuthoringStep,
    IterationAggregation,
    JudgmentResult,
    RunConfigEntry,
)
from p2p.event_log import emit, span
from p2p.records.formatting import format_score
from p2p.records.iteration_record import IterationRecord
from p2p.records.loop_files import (
    IterationPlan,
    RewardCandidate,
    RewardCandidates,
    RewardSearch,
    RungResult,
)
from p2p.records.statuses import UNFINISHED
from p2p.resource_auto import detect_machine
from p2p.session.context import SessionContext
from p2p.session.stopping import TrainingUnavailable
from p2p.training.engines.table import is_engine

if TYPE_CHECKING:
    from p2p.config import LoopConfig, TrainConfig
    from p2p.session.early_stop import EarlyJudge
    from p2p.training.trainer import Trainer


@dataclass(frozen=True)
class Rung:
    """A stage of the search: who is trained, and how far."""

    share: float
    """Of the run's steps."""
    part: float
    """Of the candidates, the best so far; at least one."""
    mutations: int = 0
    """Rewards made of the best one with other weights, that continue its training."""

    def size(self, candidates: int) -> int:
        """Return how many of so many candidates are trained in it, without mutations."""
        return max(1, math.ceil(self.part * candidates))


RUNGS = (
    Rung(0.25, 0.0),  # an easy prompt is met here, and costs no more than this
    Rung(0.25, 1.0),
    Rung(0.5, 0.5, mutations=1),
    Rung(1.0, 0.0),
)
MOST_CHOSEN, CORES_EACH, STEPS_EACH, USD_EACH, MINUTES_EACH = 4, 4, 200_000, 0.5, 10.0
"""Where the number of candidates is not given: so many at most, and what each needs: cores, steps
of a run whose quarter tells them apart, money for its author, minutes of the session."""


def candidate_count(loop: LoopConfig, train: TrainConfig) -> int:
    """How many rewards an iteration is to choose from: as asked, or by what there is to spend."""
    if loop.candidates:
        return loop.candidates
    if is_engine(train.engine):  # a start takes a minute, and the GPU is busy with one
        return 1
    if not loop.use_code_judge or loop.trainer != "local" or train.total_timesteps < STEPS_EACH:
        return 1
    limits: list[float] = [MOST_CHOSEN, detect_machine().cores // CORES_EACH]
    limits += [] if loop.budget_usd is None else [loop.budget_usd / USD_EACH]
    limits += [] if loop.max_minutes is None else [loop.max_minutes / MINUTES_EACH]
    return max(1, math.floor(min(limits)))


# --- screening ------------------------------------------------------------------------------------


def screen(rewards: Sequence[AuthoredCode]) -> RewardCandidates:
    """The rewards as candidates, in the order in which they are worth training.

    One that does not run, or does what another does, is not trained; one that pays for worse
    behaviour among those that are known without training comes after the others. Of the rest, those
    come first whose return rises with the criteria along more of the scripted motions.
    """
    candidates: list[RewardCandidate] = []
    names: dict[str, str] = {}
    worse: set[str] = set()
    for number, reward in enumerate(rewards, 1):
        name, digest = f"c{number}", reward_digest(reward.code)
        rankings = [step for step in reward.steps if step.kind == "ranking"]
        problems = [reward.last_problem] if not reward.valid else []
        if digest in names:
            problems.append(f"same as {names[digest]}")
        usable = not problems
        if rankings and not rankings[-1].ok:
            problems.append(rankings[-1].text)
            worse.add(name)
        problems += describe_falling(reward.gradients)
        candidate = RewardCandidate(
            name=name, reward=reward, problems=tuple(problems), usable=usable
        )
        candidates.append(candidate)
        names.setdefault(digest, name)
    order = sorted(
        candidates,
        key=lambda each: (not each.usable, each.name in worse, -_rising(each.reward)),
    )
    return RewardCandidates(candidates=tuple(order))


def _rising(reward: AuthoredCode) -> float:
    """Round to tenths, so that small differences keep the author's order."""
    return round(rising_share(reward.gradients) or 0.0, 1)


# --- the search -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class CandidateSearch:
    """Trains the candidates of an iteration until one stands for it."""

    context: SessionContext
    record: IterationRecord
    plan: IterationPlan
    trainer: Trainer
    early: EarlyJudge

    def run(self) -> tuple[AuthoredCode, IterationAggregation]:
        """The reward that won, and all runs, the winner's first; raises SessionCancelled.

        With further configurations and seeds, the winner is trained with all of them.
        """
        written = self.record.candidates.read()
        assert written is not None
        usable = [each for each in written.candidates if each.usable] or [*written.candidates[:1]]
        search = self.record.search.read() or self._begin(len(usable))
        try:
            while not search.winner:
                search = self._train_rung(search, usable)
                self.record.search.save(search)
        finally:
            # Between two rungs nobody trains: what waits for the next one ends with the session.
            if self.context.switch.is_cancelled():
                for run in self.record.runs():
                    run.set_status_if("cancelled", UNFINISHED)
        candidates = {each.name: each for each in (*usable, *search.offspring)}
        winner = candidates[search.winner]
        return winner.reward, self._results(winner, candidates, search)

    def _begin(self, candidates: int) -> RewardSearch:
        ladder = tuple(
            (rung_step(self.plan.train, rung), rung.size(candidates) + rung.mutations)
            for rung in RUNGS
        )
        search = RewardSearch(ladder=ladder)
        self.record.search.save(search)
        return search

    def _train_rung(self, search: RewardSearch, usable: Sequence[RewardCandidate]) -> RewardSearch:
        """Train, judge and halve once; the search with what came of it."""
        number = len(search.rungs)
        rung = RUNGS[number]
        candidates = {each.name: each for each in (*usable, *search.offspring)}
        mutations = [each for each in search.offspring if each.born_at == _last_step(search)]
        chosen = select_candidates(search, [each.name for each in usable], rung)
        if rung.mutations and not mutations:
            mutations = self._mutate_reward(search, candidates, chosen[0], rung.mutations)
            search = search.model_copy(update={"offspring": (*search.offspring, *mutations)})
            self.record.search.save(search)
        if rung.mutations:
            candidates |= {each.name: each for each in mutations}
            chosen += [each.name for each in mutations]
        step, last = rung_step(self.plan.train, rung), number + 1 == len(RUNGS)
        data = {"rung": number + 1, "candidates": chosen, "step": step}
        with span("rung", iteration=self.record.number, **data) as outcome:
            for each in mutations if rung.mutations else ():
                self._continue_parent(each)
            self._stop_others(set(chosen), search)
            self._train([candidates[name] for name in chosen], step, pause=not last)
            judgments = {name: self._judge_recorded(name, step) for name in chosen}
            scores = {name: j.intent_score if j else None for name, j in judgments.items()}
            met = "" if last else self._find_passing(judgments, step)
            outcome |= {"scores": scores, "met": met}
        rungs = (*search.rungs, RungResult(step=step, scores=scores, met=met))
        search = search.model_copy(update={"rungs": rungs})
        if not met and not last:
            return search
        if met:
            self._stop_others({met}, search)
            self._train([candidates[met]], step, pause=False)
        winner = met or chosen[0]
        reason = explain_choice(search, winner, self.plan.train.total_timesteps)
        return search.model_copy(update={"winner": winner, "reason": reason})

    # --- other weights ----------------------------------------------------------------------------

    def _mutate_reward(
        self,
        search: RewardSearch,
        candidates: Mapping[str, RewardCandidate],
        leader: str,
        count: int,
    ) -> list[RewardCandidate]:
        """The leader's reward with other weights; none where its training cannot be continued."""
        step, parent, config = _last_step(search), candidates[leader], self._config(leader)
        judgment = self._judge_recorded(leader, step)
        if config.algorithm != "ppo" or judgment is None:
            return []  # what SAC keeps to learn from was paid for by the old weights
        if (_last_checkpoint(self._first_run(leader)) or 0) >= config.total_timesteps:
            return []  # a short training is over at the first rung
        digests = {reward_digest(each.reward.code) for each in candidates.values()}
        terms = tuple(self._first_run(leader).read_reward_spec().terms)
        mutations: list[RewardCandidate] = []
        plans = weight_changes(parent.reward.code, terms, judgment, self.context.loop)
        for text, factors in plans:
            code = reweight(parent.reward.code, factors)
            if code is None or len(mutations) == count or reward_digest(code) in digests:
                continue
            digests.add(reward_digest(code))
            explanation = f"As {leader}, but {text}."
            step_of = AuthoringStep(kind="draft", ok=True, text=explanation, code=code)
            reward = AuthoredCode(
                code=code, explanation=explanation, author=WEIGHTS, valid=True, steps=(step_of,)
            )
            number = 1 + max(int(name[1:]) for name in (*candidates, *(b.name for b in mutations)))
            child = RewardCandidate(name=f"c{number}", reward=reward, parent=leader, born_at=step)
            mutations.append(child)
        return mutations

    def _continue_parent(self, child: RewardCandidate) -> None:
        """Give a mutation its parent's training state, where it has not begun its own."""
        from p2p.training.checkpoints import FILE_NAME, state_for

        run, parent = self._first_run(child.name), self._first_run(child.parent)
        if run.config.exists() or not (parent.work_dir / FILE_NAME).is_file():
            return
        run.work_dir.mkdir(parents=True, exist_ok=True)
        config = self._config(child.name)
        state_for(config, child.reward.code, parent.work_dir, run.work_dir)

    # --- training and judging ---------------------------------------------------------------------

    def _config(self, name: str) -> TrainConfig:
        """Return the configuration of a candidate's first run."""
        run_id, params = self._first_run(name).iteration_id, self.plan.configs[0].params
        fields = {**params, "seed": self.plan.seeds[0], "iteration_id": run_id}
        return self.plan.train.with_updates(**fields)

    def _first_run(self, name: str) -> IterationRecord:
        return IterationRecord(self.record.path / f"{name}_seed_{self.plan.seeds[0]}")

    def _train(self, candidates: Sequence[RewardCandidate], step: int, *, pause: bool) -> None:
        """Train each candidate to this step, from its present one."""
        runs = [
            (self._config(candidate.name), candidate.reward.code)
            for candidate in candidates
            if not (pause and _waits_at(self._first_run(candidate.name), step))
        ]
        with self.context.switch.suspend_interrupts():
            problems = self.trainer.train_runs(runs, self.record.path, until=step, pause=pause)
        self.context.switch.check()
        records = [self._first_run(candidate.name) for candidate in candidates]
        if not {record.stated_status() for record in records} & {"queued", "completed", "failed"}:
            # Not the rewards' fault, so nothing is to be said of them: the rung is done again.
            errors = {s.error for record in records if (s := record.read_status()) and s.error}
            raise TrainingUnavailable(
                f"no candidate could be trained: {'; '.join(sorted({*errors, *problems.values()}))}"
                "; `p2p resume` tries again"
            )

    def _judge_recorded(self, name: str, step: int) -> JudgmentResult | None:
        """Judge a candidate's recorded episodes by code; return None if there are none."""
        run = self._first_run(name)
        reached = _last_checkpoint(run)
        if reached is None or (reached < step and run.stop.read() is None):
            return None
        return self.early.judge_recorded(run, reached)

    def _find_passing(self, judgments: Mapping[str, JudgmentResult | None], step: int) -> str:
        """The best candidate that passes, also on held-out seeds."""
        passed = self.early.confirmations.passed
        if passed is not None:  # while it was trained
            return passed.run_id.partition("_")[0]
        passing = [(name, j) for name, j in judgments.items() if j is not None and j.passed]
        for name, early in sorted(passing, key=lambda each: -(each[1].intent_score or 0.0)):
            if self.early.try_pass(self._first_run(name), early.step or step):
                return name
        return ""

    def _stop_others(self, kept: set[str], search: RewardSearch) -> None:
        """Stop the candidates that are not trained further; keep their checkpoints and curves."""
        tried = dict.fromkeys(name for rung in search.rungs for name in rung.scores)
        for name in (each for each in tried if each not in kept):
            run = self._first_run(name)
            score = next((r.scores[name] for r in reversed(search.rungs) if name in r.scores), None)
            text = format_score(score)
            if run.set_status_if("cancelled", UNFINISHED, f"another candidate was better: {text}"):
                emit("candidate.dropped", iteration=self.record.number, name=name, score=score)
            if run.stated_status() == "cancelled":
                shutil.rmtree(run.work_dir, ignore_errors=True)

    def _results(
        self,
        winner: RewardCandidate,
        candidates: Mapping[str, RewardCandidate],
        search: RewardSearch,
    ) -> IterationAggregation:
        """Return the winner's results, because returns of different rewards do not compare."""
        from p2p.training.trainer import plan_runs, results_of

        first, *more = self.plan.configs
        entries = [_entry(winner, first)]
        entries += [_entry(winner, each, each.config_id) for each in more]
        runs, problems = plan_runs(entries, self.plan.seeds, self.plan.train)
        until = search.rungs[-1].step if search.rungs[-1].met else None
        with self.context.switch.suspend_interrupts():
            all_runs = [(run, winner.reward.code) for run in runs]
            problems |= self.trainer.train_runs(all_runs, self.record.path, until=until)
        self.context.switch.check()
        best = results_of(entries, self.plan.seeds, problems, self.record.path)
        others = [
            _entry(each, first)
            for name, each in candidates.items()
            if each != winner and self._first_run(name).path.is_dir()
        ]
        rest = results_of(others, self.plan.seeds[:1], {}, self.record.path)
        return best.model_copy(update={"configs": (*best.configs, *rest.configs)})


def _entry(candidate: RewardCandidate, config: RunConfigEntry, suffix: str = "") -> RunConfigEntry:
    name = f"{candidate.name}-{suffix}" if suffix else candidate.name
    label = f"{candidate.reward.explanation} {config.label}".strip()
    return RunConfigEntry(config_id=name, label=label, params=config.params)


def _last_checkpoint(run: IterationRecord) -> int | None:
    """The step of a run's last checkpoint."""
    from p2p.training.checkpoints import checkpoint_steps

    return max(checkpoint_steps(run), default=None)


def _waits_at(run: IterationRecord, step: int) -> bool:
    """Return whether a run waits at this step, with its checkpoint there."""
    reached = _last_checkpoint(run)
    return reached is not None and reached >= step and run.stated_status() == "queued"


def rung_step(train: TrainConfig, rung: Rung) -> int:
    """The step to train to: that of the evaluation at or after the rung's share."""
    from p2p.training.training_loop import evaluation_steps

    steps = evaluation_steps(train)
    return steps[max(0, math.ceil(rung.share * len(steps)) - 1)]


def select_candidates(search: RewardSearch, names: Sequence[str], rung: Rung) -> list[str]:
    """Select the candidates of a rung: the best of the remaining, in their order.

    Those that have not been trained yet follow in the order of screening. One that could not be
    trained or judged is out, unless there is nothing else.
    """
    untried = [name for name in names if not any(name in each.scores for each in search.rungs)]
    scores = search.rungs[-1].scores if search.rungs else {}
    # Sorting is stable: of equals, the one that stood higher before.
    ranked = sorted(scores, key=lambda name: -_comparable(scores[name]))
    tried = [name for name in ranked if scores[name] is not None]
    return [*tried, *untried][: rung.size(len(names))] or ranked[:1]


def _last_step(search: RewardSearch) -> int:
    return search.rungs[-1].step if search.rungs else 0


WEIGHTS = "search"
"""The author of rewards that are another's with other weights."""
STRONGER, WEAKER = 2.0, 0.5
SHOWN_TERMS = 3


def weight_changes(
    code: str, terms: Sequence[str], judgment: JudgmentResult, loop: LoopConfig
) -> list[tuple[str, dict[str, float]]]:
    """What to try with the weights of a reward, by what its policy lacks: words, and factors.

    First what serves the criteria that are not met counts more, then each term more or less by
    itself, the first ones first: by the rules of writing one, those are of the task.
    """
    below = [c.id for c in judgment.criteria if (c.score or 0.0) < loop.pass_threshold]
    serving = terms_serving(code, below)
    changes: list[tuple[str, dict[str, float]]] = []
    if serving and len(serving) < len(terms):
        changes.append(("what is not met counts twice", dict.fromkeys(serving, STRONGER)))
    for name in terms[:SHOWN_TERMS]:
        changes.append((f"{name} counts twice", {name: STRONGER}))
        changes.append((f"{name} counts half", {name: WEAKER}))
    return changes


def _comparable(score: float | None) -> float:
    return -1.0 if score is None else score


def explain_choice(search: RewardSearch, winner: str, total: int) -> str:
    """Return why this candidate stands for the iteration, in words."""
    last = search.rungs[-1]
    if last.met:
        return f"{winner} met all criteria after {last.step:,} of {total:,} steps"
    compared = next((r for r in reversed(search.rungs) if len(r.scores) > 1), None)
    if compared is None:
        return f"{winner} was the only candidate"
    scores = ", ".join(f"{name} {format_score(score)}" for name, score in compared.scores.items())
    return f"{winner} was the best after {compared.step:,} steps: {scores}"
