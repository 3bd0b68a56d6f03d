"""What a model may look up about a session, and the one thing that it may note.

Every tool takes plain values and gives text of bounded length. What makes no sense is answered
with a text that says so and what there is instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, Literal, ParamSpec

from pydantic import ValidationError

from p2p.agents.requests import LessonUpdate
from p2p.agents.session_lookup import (
    Mistake,
    find_iteration,
    find_judgments,
    find_run,
    judgment_at,
)
from p2p.agents.session_text import (
    code_diff,
    config_changes,
    criteria_of,
    judgment_text,
    lineage_text,
    nodes_of,
    rollout_text,
    run_line,
    score_change,
    score_of,
    score_text,
    tunables,
)
from p2p.agents.strategy import Attempt, strategy_text, trend
from p2p.contracts import JudgmentResult, LessonCheck
from p2p.inference.agent_tools import truncated
from p2p.inference.question import Tool
from p2p.records.session_view import IterationView, SessionView

LESSON_TIERS = ("HARD", "STRONG", "SOFT", "RETIRED")

Parameters = ParamSpec("Parameters")
Detail = Literal["aggregate", "summary", "all"]


def _answered(
    tool: Callable[Concatenate[SessionTools, Parameters], str],
) -> Callable[Concatenate[SessionTools, Parameters], str]:
    """Mistakes as text, and no text without end."""

    @wraps(tool)
    def answer(self: SessionTools, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> str:
        try:
            return truncated(tool(self, *args, **kwargs))
        except Mistake as mistake:
            return f"error: {mistake}"

    return answer


class SessionTools:
    """The tools, bound to a session; `updates` collects what is noted about lessons."""

    def __init__(self, view: SessionView, iteration: int | None = None) -> None:
        """Without an iteration named, a tool means `iteration`, or else the last one."""
        self._view = view
        self._iteration = iteration
        self.updates: dict[int, LessonUpdate] = {}

    def reading(self) -> list[Tool]:
        """The tools that look something up."""
        return [
            self.get_iteration_reward_code,
            self.get_iteration_training_dynamics,
            self.compare_iterations,
            self.get_iteration_judgment_detail,
            self.get_checkpoint_judgments,
            self.get_rollout_judgment,
            self.get_config_comparison,
            self.get_iteration_scores,
            self.get_strategy_summary,
            self.get_experiment_lineage,
        ]

    def all(self) -> list[Tool]:
        """Those, and the one that notes a change to a lesson."""
        return [*self.reading(), self.update_experiment_lessons]

    @_answered
    def get_iteration_reward_code(self, iteration: int) -> str:
        """The complete reward code of an iteration."""
        return self._find(iteration).reward_code or f"iteration {iteration} has no reward code"

    @_answered
    def get_iteration_training_dynamics(self, iteration: int, run_id: str = "") -> str:
        """How training went: returns, exploration, losses, reward terms.

        Args:
            iteration: its number.
            run_id: one of its runs; empty for the best.
        """
        run = find_run(self._find(iteration), run_id)
        shares = [f"  {name}: {share:.0%}" for name, share in run.term_shares.items()]
        lines = [f"run {run.run_id}: {run.status}", *([run.error] if run.error else [])]
        lines.append(run.dynamics().text())
        if shares:
            lines += ["share of the terms in the last evaluation:", *shares]
        lines += [f"evaluation at step {step}: {value:.4g}" for step, value in run.curve[-20:]]
        return "\n".join(lines)

    @_answered
    def compare_iterations(self, iter_a: int, iter_b: int) -> str:
        """What changed from one iteration to another: scores, hyperparameters, reward code."""
        first, second = self._find(iter_a), self._find(iter_b)
        score = score_of(self._view, iter_a), score_of(self._view, iter_b)
        before = {found.id: found.score for found in criteria_of(first)}
        lines = [f"score: {score_change(*score)}"]
        lines += [
            f"  {found.id}: {score_change(before.get(found.id), found.score)}"
            for found in criteria_of(second)
        ]
        changes = config_changes(tunables(first.config), tunables(second.config))
        return "\n".join([*lines, f"hyperparameters: {changes}", code_diff(first, second)])

    @_answered
    def get_iteration_judgment_detail(self, iteration: int, run_id: str = "") -> str:
        """What the judges said of an iteration, by criterion and episode.

        Args:
            iteration: its number.
            run_id: one of its runs; empty for the best.
        """
        found = self._find(iteration)
        judgment = find_run(found, run_id).judgment if run_id else found.judgment
        if judgment is None:
            raise Mistake(f"{run_id or f'iteration {iteration}'} is not judged")
        return judgment_text(judgment, rollouts=True)

    @_answered
    def get_checkpoint_judgments(
        self,
        step: int | None = None,
        run_id: str = "",
        detail: Detail = "aggregate",
        iteration: int | None = None,
    ) -> str:
        """What the judges said of the checkpoints of a run.

        Args:
            step: one checkpoint; none for all of them.
            run_id: which run; empty for the best.
            detail: `aggregate` gives scores, `summary` criteria, too, `all` episodes, too.
            iteration: which iteration; none for the one in question.
        """
        judgments = self._judgments(iteration, run_id)
        if step is not None:
            judgments = {step: judgment_at(judgments, step)}
        if detail == "aggregate":
            return "\n".join(
                f"step {at}: {score_text(found.intent_score, found.score_std)}"
                for at, found in judgments.items()
            )
        return "\n\n".join(
            judgment_text(found, rollouts=detail == "all") for found in judgments.values()
        )

    @_answered
    def get_rollout_judgment(
        self,
        step: int | None = None,
        rollout_label: str = "",
        episode_idx: int | None = None,
        run_id: str = "",
        iteration: int | None = None,
    ) -> str:
        """What each judge said of one episode.

        Args:
            step: the checkpoint; none for the last that was judged.
            rollout_label: the episode by its label, or
            episode_idx: by its number, from 0.
            run_id: which run; empty for the best.
            iteration: which iteration; none for the one in question.
        """
        judgments = self._judgments(iteration, run_id)
        rollouts = judgment_at(judgments, max(judgments) if step is None else step).rollouts
        labels = [rollout.label for rollout in rollouts]
        if rollout_label:
            episode_idx = labels.index(rollout_label) if rollout_label in labels else -1
        if episode_idx is None or not 0 <= episode_idx < len(rollouts):
            raise Mistake(f"no such episode; there are 0 to {len(labels) - 1}: {', '.join(labels)}")
        return rollout_text(rollouts[episode_idx])

    @_answered
    def get_config_comparison(
        self, detail: Literal["summary", "all"] = "summary", iteration: int | None = None
    ) -> str:
        """How the configurations of an iteration did against each other.

        Args:
            detail: `summary` gives configurations, `all` each of their runs, too.
            iteration: which iteration; none for the one in question.
        """
        found = self._find(iteration)
        aggregation = found.aggregation
        lines = [f"iteration {found.number}"]
        for config in aggregation.configs if aggregation else ():
            best = (
                " (best)" if aggregation and config.config_id == aggregation.best_config_id else ""
            )
            mean = "no run ended" if config.mean_return is None else f"{config.mean_return:.4g}"
            spread = "" if config.std_return is None else f" ± {config.std_return:.4g}"
            lines.append(f"{config.config_id}{best}: return {mean}{spread}")
        if aggregation is None or detail == "all":
            lines += [run_line(run, found.config) for run in found.runs]
        return "\n".join(lines) if len(lines) > 1 else "\n".join([*lines, "no runs yet"])

    @_answered
    def get_iteration_scores(self, top_k: int | None = None) -> str:
        """The scores of all iterations and where they go.

        Args:
            top_k: only this many, the best first.
        """
        nodes = nodes_of(self._view)
        if not nodes:
            return "no iterations yet"
        scores = [node.score for node in nodes if node.score is not None]
        shown = nodes[-100:]
        if top_k is not None:
            judged = [node for node in nodes if node.score is not None]
            judged.sort(key=lambda node: (-(node.score or 0.0), node.iteration))
            shown = judged[: max(top_k, 1)]
        return "\n".join(
            [
                f"trend: {trend(scores)}",
                *[f"{node.iteration}: {score_text(node.score, node.score_std)}" for node in shown],
            ]
        )

    @_answered
    def get_strategy_summary(self) -> str:
        """What was tried so far, what it brought, what regressed, and what went in circles."""
        iterations = self._view.iterations
        attempts = [
            Attempt(
                node,
                found.reward_code if found else "",
                tunables(found.config) if found else {},
            )
            for node in nodes_of(self._view)
            for found in [iterations.get(node.iteration)]
        ]
        return strategy_text(attempts)

    @_answered
    def get_experiment_lineage(self) -> str:
        """The tree of iterations, which one came from which, and the lessons by number."""
        return lineage_text(self._view.lineage)

    @_answered
    def update_experiment_lessons(
        self,
        index: int,
        tier: str,
        reason: str,
        check: LessonCheck | None = None,
    ) -> str:
        """Give a lesson another tier; it counts from the revision you are about to give.

        Args:
            index: the lesson's number.
            tier: HARD (must be followed), STRONG, SOFT, or RETIRED (wrong or outlived).
            reason: why.
            check: for HARD lessons, how code can hold a proposal against it.
        """
        try:
            update = LessonUpdate(index=index, tier=tier, reason=reason, check=check)
        except ValidationError as error:
            raise Mistake(str(error)) from None
        lessons = self._view.lineage.active_lessons
        if problem := lesson_update_problem(update, len(lessons)):
            raise Mistake(problem)
        self.updates[index] = update
        return f"noted: lesson {index} becomes {tier}: {lessons[index].text}"

    def _judgments(self, iteration: int | None, run_id: str) -> dict[int, JudgmentResult]:
        return find_judgments(find_run(self._find(iteration), run_id))

    def _find(self, iteration: int | None) -> IterationView:
        return find_iteration(self._view, iteration if iteration is not None else self._iteration)


def lesson_update_problem(update: LessonUpdate, lessons: int) -> str:
    """Why the update cannot be made to so many lessons; empty if it can."""
    if not 0 <= update.index < lessons:
        return f"there is no lesson {update.index}; there are {lessons}, from 0"
    if update.tier not in LESSON_TIERS:
        return f"{update.tier!r} is no tier; use one of {', '.join(LESSON_TIERS)}"
    return ""
