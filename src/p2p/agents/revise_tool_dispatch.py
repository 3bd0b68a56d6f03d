"""What a model may look up about a session, and the one thing that it may note.

Every tool takes plain values and gives text of bounded length. What makes no sense is answered
with a text that says so and what there is instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Concatenate, Literal, ParamSpec

from pydantic import ValidationError

from p2p.agents.judged_episode import episode_files, table
from p2p.agents.requests import LessonUpdate
from p2p.agents.session_text import (
    Attempt,
    code_diff,
    config_changes,
    criteria_of,
    judgment_text,
    lineage_text,
    nodes_of,
    rollout_text,
    run_line,
    score_text,
    strategy_text,
    trend,
    tunables,
)
from p2p.analysis.trajectory_metrics import analyze_trajectory
from p2p.contracts import JudgmentResult, LessonCheck
from p2p.inference.agent_tools import truncated
from p2p.inference.question import Tool
from p2p.records.session_view import IterationView, RunView, SessionView
from p2p.training.trajectory import RecordedEpisode, TrajectoryFileError

LESSON_TIERS = ("HARD", "STRONG", "SOFT", "RETIRED")

Parameters = ParamSpec("Parameters")
Detail = Literal["aggregate", "summary", "all"]


class ToolMistake(ValueError):
    """What the model asked for does not exist or makes no sense; the text is for the model."""


def _answered(
    tool: Callable[Concatenate[SessionTools, Parameters], str],
) -> Callable[Concatenate[SessionTools, Parameters], str]:
    """Mistakes as text, and no text without end."""

    @wraps(tool)
    def answer(self: SessionTools, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> str:
        try:
            return truncated(tool(self, *args, **kwargs))
        except ToolMistake as mistake:
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
        """All that look something up; those about a history only where there is one."""
        tools: list[Tool] = [
            self.get_iteration_reward_code,
            self.get_iteration_training_dynamics,
            self.get_iteration_judgment_detail,
            self.get_checkpoint_judgments,
            self.get_rollout_judgment,
            self.get_trajectory,
            self.get_config_comparison,
        ]
        if len(self._view.iterations) > 1:
            tools += [
                self.compare_iterations,
                self.get_iteration_scores,
                self.get_strategy_summary,
                self.get_experiment_lineage,
            ]
        return tools

    def all(self) -> list[Tool]:
        """Those, and the one that notes a change to a lesson, where there is a lesson."""
        lessons = self._view.lineage.active_lessons
        return [*self.reading(), *([self.update_experiment_lessons] if lessons else [])]

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
        run = _run(self._find(iteration), run_id)
        lines = [f"run {run.run_id}: {run.status}", *([run.error] if run.error else [])]
        lines += [run.dynamics().text(), *_term_lines(run)]
        lines += [f"evaluation at step {step}: {value:.4g}" for step, value in run.curve[-20:]]
        return "\n".join(lines)

    @_answered
    def compare_iterations(self, iter_a: int, iter_b: int) -> str:
        """What changed from one iteration to another: scores, hyperparameters, reward code."""
        first, second = self._find(iter_a), self._find(iter_b)
        nodes = nodes_of(self._view)
        before = {each.id: each.score for each in criteria_of(first)}
        pairs = [("score", nodes[iter_a].score, nodes[iter_b].score)]
        pairs += [(f"  {e.id}", before.get(e.id), e.score) for e in criteria_of(second)]
        lines = [f"{name}: {score_text(old)} -> {score_text(new)}" for name, old, new in pairs]
        changes = config_changes(tunables(first.config), tunables(second.config))
        return "\n".join([*lines, f"hyperparameters: {changes}", code_diff(first, second)])

    @_answered
    def get_iteration_judgment_detail(self, iteration: int, run_id: str = "") -> str:
        """What the judges said of an iteration, by criterion and episode.

        Args:
            iteration: its number.
            run_id: one of its runs; empty for the best.
        """
        view = self._find(iteration)
        judgment = _run(view, run_id).judgment if run_id else view.judgment
        if judgment is None:
            raise ToolMistake(f"{run_id or f'iteration {iteration}'} is not judged")
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
            judgments = {step: _judgment_at(judgments, step)}
        if detail == "aggregate":
            return "\n".join(
                f"step {at}: {score_text(judgment.intent_score, judgment.score_std)}"
                for at, judgment in judgments.items()
            )
        return "\n\n".join(
            judgment_text(each, rollouts=detail == "all") for each in judgments.values()
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
        rollouts = _judgment_at(judgments, max(judgments) if step is None else step).rollouts
        labels = [rollout.label for rollout in rollouts]
        if rollout_label:
            episode_idx = labels.index(rollout_label) if rollout_label in labels else -1
        if episode_idx is None or not 0 <= episode_idx < len(rollouts):
            raise ToolMistake(
                f"no such episode; there are 0 to {len(labels) - 1}: {', '.join(labels)}"
            )
        return rollout_text(rollouts[episode_idx])

    @_answered
    def get_trajectory(
        self,
        columns: list[str],
        episode: str = "",
        first: int = 0,
        last: int | None = None,
        run_id: str = "",
        iteration: int | None = None,
    ) -> str:
        """Numbers of a recorded episode of the judged checkpoint, step by step, thinned to 40.

        Args:
            columns: up to 12, as `x_velocity`, `qpos[2]`, `xpos[1,2]`; reward terms by their names.
            episode: a label of a judged episode, or median, p10, p90 of the checkpoint's own
                evaluation, which alone have reward terms; empty for median.
            first: step to begin with.
            last: step to end with; none for the last.
            run_id: which run; empty for the best.
            iteration: which iteration; none for the one in question.
        """
        files = episode_files(_run(self._find(iteration), run_id))
        label = episode or ("median" if "median" in files else next(iter(files), ""))
        if label not in files:
            raise ToolMistake(f"no recorded episode {label!r}; there are {_listed(files)}")
        try:
            return f"{label}\n{table(RecordedEpisode.load(files[label]), columns, first, last)}"
        except (OSError, ValueError) as error:
            raise ToolMistake(str(error)) from None

    @_answered
    def get_config_comparison(
        self, detail: Literal["summary", "all"] = "summary", iteration: int | None = None
    ) -> str:
        """How the configurations of an iteration did against each other.

        Args:
            detail: `summary` gives configurations, `all` each of their runs, too.
            iteration: which iteration; none for the one in question.
        """
        view = self._find(iteration)
        aggregation = view.aggregation
        lines = [f"iteration {view.number}"]
        for config in aggregation.configs if aggregation else ():
            best = (
                " (best)" if aggregation and config.config_id == aggregation.best_config_id else ""
            )
            mean = "no run ended" if config.mean_return is None else f"{config.mean_return:.4g}"
            spread = "" if config.std_return is None else f" ± {config.std_return:.4g}"
            lines.append(f"{config.config_id}{best}: return {mean}{spread}")
        if aggregation is None or detail == "all":
            lines += [run_line(run, view.config) for run in view.runs]
        return "\n".join(lines) if len(lines) > 1 else "\n".join([*lines, "no runs yet"])

    @_answered
    def get_iteration_scores(self, top_k: int | None = None) -> str:
        """The scores of all iterations and where they go.

        Args:
            top_k: only this many, the best first.
        """
        nodes = list(nodes_of(self._view).values())
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
                view.reward_code if view else "",
                tunables(view.config) if view else {},
            )
            for node in nodes_of(self._view).values()
            for view in [iterations.get(node.iteration)]
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
            raise ToolMistake(str(error)) from None
        lessons = self._view.lineage.active_lessons
        if problem := lesson_update_problem(update, len(lessons)):
            raise ToolMistake(problem)
        self.updates[index] = update
        return f"noted: lesson {index} becomes {tier}: {lessons[index].text}"

    def _judgments(self, iteration: int | None, run_id: str) -> dict[int, JudgmentResult]:
        """The judged checkpoints of a run; there is at least one."""
        run = _run(self._find(iteration), run_id)
        if not run.checkpoint_judgments:
            raise ToolMistake(f"no checkpoint of {run.run_id} is judged")
        return run.checkpoint_judgments

    def _find(self, iteration: int | None) -> IterationView:
        """The iteration of this number; None: the one in question, or the last."""
        iterations = self._view.iterations
        if not iterations:
            raise ToolMistake("there is no iteration yet")
        number = self._iteration if iteration is None else iteration
        number = max(iterations) if number is None else number
        if number not in iterations:
            raise ToolMistake(f"there is no iteration {number}; there are {_listed(iterations)}")
        return iterations[number]


def _run(iteration: IterationView, run_id: str) -> RunView:
    """The run of this name; empty: the best one."""
    best = iteration.best_run
    if best is None:
        raise ToolMistake(f"iteration {iteration.number} has no runs")
    if not run_id:
        return best
    runs = {run.run_id: run for run in iteration.runs}
    if run_id not in runs:
        raise ToolMistake(
            f"iteration {iteration.number} has no run {run_id}; it has {_listed(runs)}"
        )
    return runs[run_id]


def _judgment_at(judgments: dict[int, JudgmentResult], step: int) -> JudgmentResult:
    if step not in judgments:
        raise ToolMistake(f"no judgement of step {step}; judged are {_listed(judgments)}")
    return judgments[step]


def _term_lines(run: RunView) -> list[str]:
    """The reward's terms in the last evaluation: their shares, and how they went in an episode."""
    shares = [f"  {name}: {share:.0%}" for name, share in run.term_shares.items()]
    lines = ["share of the terms in the last evaluation:", *shares] if shares else []
    if run.curve:
        try:
            file = run.record.trajectory_file(run.curve[-1][0], "median")
            terms = RecordedEpisode.load(file).reward_terms
        except (OSError, TrajectoryFileError):
            return lines  # not every evaluation leaves one
        text = analyze_trajectory(terms).text()
        lines += ["terms step by step in its median episode:", text] if text else []
    return lines


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(str, list(names)[-50:]))


def lesson_update_problem(update: LessonUpdate, lessons: int) -> str:
    """Why the update cannot be made to so many lessons; empty if it can."""
    if not 0 <= update.index < lessons:
        return f"there is no lesson {update.index}; there are {lessons}, from 0"
    if update.tier not in LESSON_TIERS:
        return f"{update.tier!r} is no tier; use one of {', '.join(LESSON_TIERS)}"
    return ""
