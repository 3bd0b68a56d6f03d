"""What a model may look up about a session, and the one thing that it may note.

Every tool takes plain values and gives text of bounded length. What makes no sense is answered
with a text that says so and what there is instead.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import unified_diff
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, get_args

import numpy as np
from pydantic import ValidationError

from p2p.agents.requests import LessonUpdate, PastIteration
from p2p.analysis.trajectory_metrics import analyze_trajectory
from p2p.config import TrainConfig
from p2p.contracts import (
    ROLLOUT_LABELS,
    CriterionScore,
    JudgmentResult,
    LessonCheck,
    LineageNode,
    RolloutJudgment,
)
from p2p.inference.agent_tools import truncate_text
from p2p.inference.question import Tool
from p2p.records.formatting import format_score
from p2p.records.lineage import Lineage
from p2p.records.session_view import IterationView, RunView, SessionView
from p2p.training.trajectory import TERM_PREFIX, Column, RecordedEpisode, TrajectoryFileError

LESSON_TIERS = ("HARD", "STRONG", "SOFT", "RETIRED")
MAX_HISTORY = 40
MAX_ROWS, MAX_COLUMNS = 40, 12
"""Of the numbers of an episode."""
_MAX_DIFF_LINES = 160
_DETAILED, _ONE_LINE = 10, 40
"""So many of the last iterations are told in detail, and so many before them in a line."""
_LONGEST = 160
_CLEAR_STEP, _PLATEAU, _WINDOW = 0.02, 0.05, 4
_COLUMN = re.compile(r"(\w+)(?:\[(\d+(?:\s*,\s*\d+)*)\])?")

Parameters = ParamSpec("Parameters")
Part = Literal["reward_code", "training", "judgment", "checkpoints", "runs"]


class ToolMistake(ValueError):
    """What the model asked for does not exist or makes no sense; the text is for the model."""


def _as_text(
    tool: Callable[Concatenate[SessionTools, Parameters], str],
) -> Callable[Concatenate[SessionTools, Parameters], str]:
    """Answer mistakes with their text, and cut answers that are too long."""

    @wraps(tool)
    def answer(self: SessionTools, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> str:
        try:
            return truncate_text(tool(self, *args, **kwargs))
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
        """Return the tools that read; those about the history only if there is one."""
        tools: list[Tool] = [self.get_iteration, self.get_episode]
        if len(self._view.iterations) > 1:
            tools += [self.compare_iterations, self.get_history]
        return tools

    def all(self) -> list[Tool]:
        """Return all tools; the one that changes a lesson only if there is a lesson."""
        lessons = self._view.lineage.active_lessons
        return [*self.reading(), *([self.update_lesson] if lessons else [])]

    @_as_text
    def get_iteration(self, part: Part, iteration: int | None = None, run_id: str = "") -> str:
        """Return one part of the record of an iteration.

        Args:
            part: `reward_code`; `training`: returns, exploration, losses, reward terms; `judgment`:
                what the judges said, by criterion and episode; `checkpoints`: the same for every
                judged checkpoint of a run, without episodes; `runs`: its configurations and runs.
            iteration: its number; none for the one in question.
            run_id: one of its runs, for training, judgment and checkpoints; empty for the best.
        """
        view = self._find(iteration)
        if part == "reward_code":
            return view.reward_code or f"iteration {view.number} has no reward code"
        if part == "runs":
            return _runs_text(view)
        if part == "judgment" and not run_id:
            if view.judgment is None:
                raise ToolMistake(f"iteration {view.number} is not judged")
            return judgment_text(view.judgment, rollouts=True)
        run = _run(view, run_id)
        if part == "training":
            return _training_text(run)
        if part == "judgment":
            if run.judgment is None:
                raise ToolMistake(f"{run_id} is not judged")
            return judgment_text(run.judgment, rollouts=True)
        if part == "checkpoints":
            judged = run.checkpoint_judgments.values()
            return "\n\n".join(map(judgment_text, judged)) or f"{run.run_id}: none is judged"
        raise ToolMistake(f"{part!r} is no part; choose from {', '.join(get_args(Part))}")

    @_as_text
    def get_episode(
        self,
        episode: str = "",
        columns: list[str] | None = None,
        step: int | None = None,
        first: int = 0,
        last: int | None = None,
        iteration: int | None = None,
        run_id: str = "",
    ) -> str:
        """Return what each judge said of one episode; or, with columns, its numbers step by step.

        Args:
            episode: the label of a judged episode. For numbers also median, p10, p90 of the
                checkpoint's own evaluation, which alone have reward terms; empty for median.
            columns: up to 12, as `x_velocity`, `qpos[2]`, `xpos[1,2]`; reward terms by their names,
                or as `reward_term_heading` where a column is called so, too.
                Of the judged checkpoint, thinned to 40 steps.
            step: for judges: the checkpoint; none for the last that was judged.
            first: for numbers: the step to begin with.
            last: for numbers: the step to end with; none for the last.
            iteration: which iteration; none for the one in question.
            run_id: which run; empty for the best.
        """
        run = _run(self._find(iteration), run_id)
        if columns is None:
            return _rollout_text(run, step, episode)
        files = episode_files(run)
        label = episode or ("median" if "median" in files else next(iter(files), ""))
        if label not in files:
            raise ToolMistake(f"no recorded episode {label!r}; there are {_list_names(files)}")
        try:
            return f"{label}\n{table(RecordedEpisode.load(files[label]), columns, first, last)}"
        except (OSError, ValueError) as error:
            raise ToolMistake(str(error)) from None

    @_as_text
    def compare_iterations(self, iter_a: int, iter_b: int) -> str:
        """What changed from one iteration to another: scores, hyperparameters, reward code."""
        first, second = self._find(iter_a), self._find(iter_b)
        nodes = list_nodes(self._view)
        before = {each.id: each.score for each in criteria_of(first)}
        pairs = [("score", nodes[iter_a].score, nodes[iter_b].score)]
        pairs += [(f"  {e.id}", before.get(e.id), e.score) for e in criteria_of(second)]
        lines = [f"{name}: {format_score(old)} -> {format_score(new)}" for name, old, new in pairs]
        changes = config_changes(tunable_settings(first.config), tunable_settings(second.config))
        return "\n".join([*lines, f"hyperparameters: {changes}", _code_diff(first, second)])

    @_as_text
    def get_history(self) -> str:
        """All iterations as a tree with scores and changes, what was noticed, and the lessons."""
        if not (nodes := list_nodes(self._view)):
            return "no iterations yet"
        views = self._view.iterations
        settings = {n: tunable_settings(views[n].config) for n in nodes if n in views}
        notes = history_notes([*nodes.values()], settings)
        return "\n".join([*notes, lineage_text(self._view.lineage)])

    @_as_text
    def update_lesson(
        self, index: int, tier: str, reason: str, check: LessonCheck | None = None
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

    def _find(self, iteration: int | None) -> IterationView:
        """Return the iteration of this number; by default the current one, or the last."""
        iterations = self._view.iterations
        if not iterations:
            raise ToolMistake("there is no iteration yet")
        number = self._iteration if iteration is None else iteration
        number = max(iterations) if number is None else number
        if number not in iterations:
            raise ToolMistake(
                f"there is no iteration {number}; there are {_list_names(iterations)}"
            )
        return iterations[number]


def lesson_update_problem(update: LessonUpdate, lessons: int) -> str:
    """Return why the update cannot be made to so many lessons; empty if it can."""
    if not 0 <= update.index < lessons:
        return f"there is no lesson {update.index}; there are {lessons}, from 0"
    if update.tier not in LESSON_TIERS:
        return f"{update.tier!r} is no tier; use one of {', '.join(LESSON_TIERS)}"
    return ""


def _run(iteration: IterationView, run_id: str) -> RunView:
    """The run of this name; empty: the best one."""
    best = iteration.best_run
    if best is None:
        raise ToolMistake(f"iteration {iteration.number} has no runs")
    runs = {run.run_id: run for run in iteration.runs} | {"": best}
    if run_id not in runs:
        runs.pop("")
        raise ToolMistake(
            f"iteration {iteration.number} has no run {run_id}; it has {_list_names(runs)}"
        )
    return runs[run_id]


def _list_names(names: Iterable[object]) -> str:
    return ", ".join(map(str, list(names)[-50:]))


# --- values ---------------------------------------------------------------------------------------


def shorten_line(text: str, longest: int) -> str:
    """Put a text on one line, cut to a length."""
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"


def round_digits(value: float) -> float:
    """Round to four digits; more of them only cost tokens."""
    return float(f"{value:.4g}")


def tunable_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the hyperparameters that a revision can change, as JSON values."""
    return config.model_dump(mode="json", include=set(config.tunable))


def list_nodes(view: SessionView) -> dict[int, LineageNode]:
    """Return all iterations in order, from the lineage or else from their files."""
    nodes = {number: _make_node(each) for number, each in view.iterations.items()}
    nodes |= {node.iteration: node for node in view.lineage.data.nodes}
    return dict(sorted(nodes.items()))


def _make_node(iteration: IterationView) -> LineageNode:
    judgment = iteration.judgment or JudgmentResult(intent_score=None)
    return LineageNode(
        iteration=iteration.number,
        score=judgment.intent_score,
        score_std=judgment.score_std,
        passed=judgment.passed,
        failure_tags=judgment.failure_tags,
        diagnosis=judgment.diagnosis,
    )


def history(view: SessionView) -> tuple[PastIteration, ...]:
    """The last MAX_HISTORY iterations, and the best one."""
    nodes = list(list_nodes(view).values())
    best = view.lineage.best
    kept = [n for n in nodes[:-MAX_HISTORY] if best is not None and n.iteration == best.iteration]
    return tuple(
        PastIteration(
            iteration=node.iteration,
            parent=node.parent,
            score=node.score and round_digits(node.score),
            final_return=node.final_return and round_digits(node.final_return),
            failure_tags=node.failure_tags[:8],
            changes=shorten_line(node.changes, 200),
        )
        for node in [*kept, *nodes[-MAX_HISTORY:]]
    )


def criteria_of(iteration: IterationView) -> tuple[CriterionScore, ...]:
    """Return how its best run meets the criteria; empty if it is not judged."""
    return iteration.judgment.criteria if iteration.judgment else ()


# --- judgements in words --------------------------------------------------------------------------


def judgment_text(judgment: JudgmentResult, *, rollouts: bool = False) -> str:
    """The whole judgement; its episodes in a line each, if asked for."""
    step = "" if judgment.step is None else f" of the checkpoint at step {judgment.step}"
    score = format_score(judgment.intent_score, judgment.score_std)
    passed = "passed" if judgment.passed else "not passed"
    lines = [f"score{step}: {score}, {passed}, judged by {judgment.strategy}"]
    lines += [f"judge {name} could not judge: {why}" for name, why in judgment.unavailable.items()]
    if judgment.agreement is not None:
        lines.append(f"agreement of the judges: {judgment.agreement:.2f}")
    if judgment.confidence is not None:
        lines.append(f"confidence: {judgment.confidence:.2f}")
    lines += _criterion_lines(judgment.criteria)
    lines.append(f"failures: {', '.join(judgment.failure_tags) or 'none'}")
    lines.append(f"diagnosis: {shorten_line(judgment.diagnosis, 1500)}")
    if rollouts:
        lines += [f"episode {_rollout_line(each)}" for each in judgment.rollouts]
    return "\n".join(lines)


def _criterion_lines(scores: Sequence[CriterionScore]) -> list[str]:
    return [
        f"  {each.id}: {format_score(each.score, each.std)}"
        + ("" if each.value is None else f", measured {each.value:.4g}")
        + (f", {shorten_line(each.evidence, 200)}" if each.evidence else "")
        for each in scores
    ]


def _rollout_line(rollout: RolloutJudgment) -> str:
    tags = f" [{', '.join(rollout.failure_tags)}]" if rollout.failure_tags else ""
    return f"{rollout.label}: {format_score(rollout.score)}{tags}"


def _rollout_text(run: RunView, step: int | None, label: str) -> str:
    """Return each judge's opinion on an episode of a checkpoint, by default the last."""
    judgments = run.checkpoint_judgments
    if not judgments:
        raise ToolMistake(f"no checkpoint of {run.run_id} is judged")
    step = max(judgments) if step is None else step
    if step not in judgments:
        raise ToolMistake(f"no judgement of step {step}; judged are {_list_names(judgments)}")
    rollouts = {rollout.label: rollout for rollout in judgments[step].rollouts}
    if label not in rollouts:
        raise ToolMistake(f"no judged episode {label!r}; there are {_list_names(rollouts)}")
    rollout = rollouts[label]
    lines = [
        _rollout_line(rollout),
        *_criterion_lines(rollout.criteria),
        f"diagnosis: {shorten_line(rollout.diagnosis, 800)}",
    ]
    for opinion in rollout.opinions:
        if opinion.available:
            text = f"{format_score(opinion.score)}; {shorten_line(opinion.diagnosis, 400)}"
        else:
            text = f"could not judge: {shorten_line(opinion.reason, 300)}"
        lines += [f"judge {opinion.judge}: {text}", *_criterion_lines(opinion.criteria)]
    return "\n".join(lines)


# --- trainings in words ---------------------------------------------------------------------------


def _training_text(run: RunView) -> str:
    lines = [f"run {run.run_id}: {run.status}", *([run.error] if run.error else [])]
    lines.append(run.dynamics().text())
    if run.term_shares:
        lines.append("share of the terms in the last evaluation:")
        lines += [f"  {name}: {share:.0%}" for name, share in run.term_shares.items()]
    if run.curve:
        try:
            file = run.record.trajectory_file(run.curve[-1][0], "median")
            text = analyze_trajectory(RecordedEpisode.load(file).reward_terms).text()
        except (OSError, TrajectoryFileError):
            text = ""  # not every evaluation leaves one
        lines += ["terms step by step in its median episode:", text] if text else []
    lines += [f"evaluation at step {step}: {value:.4g}" for step, value in run.curve[-20:]]
    return "\n".join(lines)


def _runs_text(view: IterationView) -> str:
    """The configurations of an iteration against each other, and each of their runs."""
    aggregation = view.aggregation
    lines = [f"iteration {view.number}"]
    for config in aggregation.configs if aggregation else ():
        best = " (best)" if aggregation and config.config_id == aggregation.best_config_id else ""
        mean = "no run ended" if config.mean_return is None else f"{config.mean_return:.4g}"
        spread = "" if config.std_return is None else f" ± {config.std_return:.4g}"
        lines.append(f"{config.config_id}{best}: return {mean}{spread}")
    lines += [_run_line(run, view.config) for run in view.runs]
    return "\n".join(lines) if len(lines) > 1 else f"{lines[0]}\nno runs yet"


def _run_line(run: RunView, base: TrainConfig) -> str:
    judgment, config = run.judgment, run.config
    score = format_score(judgment.intent_score, judgment.score_std) if judgment else "not judged"
    last = f", last evaluation {run.curve[-1][1]:.4g}" if run.curve else ""
    failed = f" ({shorten_line(run.error, 200)})" if run.error else ""
    changes = (
        config_changes(tunable_settings(base), tunable_settings(config)) if config else "unknown"
    )
    return f"{run.run_id}: {run.status}{failed}, score {score}{last}, changes: {changes}"


def _code_diff(first: IterationView, second: IterationView) -> str:
    before, after = first.reward_code.splitlines(), second.reward_code.splitlines()
    names = f"iteration {first.number}", f"iteration {second.number}"
    lines = list(unified_diff(before, after, *names, lineterm="", n=2))
    left = len(lines) - _MAX_DIFF_LINES
    lines = lines[:_MAX_DIFF_LINES] + ([f"({left} more lines)"] if left > 0 else [])
    return "\n".join(lines) or "the rewards are the same text"


def config_changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """`name: old -> new`, for what differs."""
    changed = [name for name in second if first.get(name) != second[name]]
    return (
        ", ".join(f"{n}: {json.dumps(first.get(n))} -> {json.dumps(second[n])}" for n in changed)
        or "none"
    )


# --- the history in words -------------------------------------------------------------------------


def lineage_text(lineage: Lineage) -> str:
    """The tree with explicit parents, then the lessons by number, of bounded length."""
    nodes, best, lessons = lineage.data.nodes, lineage.best, lineage.active_lessons
    if not nodes:
        return "no iterations yet"
    lines = ["Iterations, each with the one it was based on; * is the best:"]
    older, last = nodes[:-_DETAILED], nodes[-_DETAILED:]
    left_out = [node for node in older[:-_ONE_LINE] if node != best]
    if left_out:
        lines.append(f"({len(left_out)} earlier iterations left out)")
    lines += [_node_line(node, best) for node in older if node not in left_out]
    lines += [line for node in last for line in (_node_line(node, best), *_node_details(node))]
    lines.append("Lessons:" if lessons else "No lessons yet.")
    for number, lesson in enumerate(lessons):
        checked = " (checked by code)" if lesson.tier == "HARD" and lesson.check else ""
        where = f"{lesson.tier}{checked}, from iteration {lesson.learned_at}"
        lines.append(f"[{number}] {where}: {shorten_line(lesson.text, 240)}")
    return "\n".join(lines)


def _node_line(node: LineageNode, best: LineageNode | None) -> str:
    mark = "*" if node == best else " "
    parent = "new" if node.parent is None else f"from {node.parent}"
    score = ("" if node.score is None else "score ") + format_score(node.score, node.score_std)
    passed = ", passed" if node.passed else ""
    tags = f" [{shorten_line(', '.join(node.failure_tags), _LONGEST)}]" if node.failure_tags else ""
    return f"{mark}{node.iteration} ({parent}): {score}{passed}{tags}"


def _node_details(node: LineageNode) -> list[str]:
    changed = json.dumps(node.hp_changes, default=str) if node.hp_changes else ""
    details = {
        "changes": node.changes,
        "hyperparameters": changed,
        "return": "" if node.final_return is None else f"{node.final_return:.4g}",
        "diagnosis": node.diagnosis,
        "lesson": node.lesson,
    }
    return [f"    {name}: {shorten_line(text, _LONGEST)}" for name, text in details.items() if text]


def history_notes(
    nodes: Sequence[LineageNode], settings: Mapping[int, Mapping[str, Any]]
) -> list[str]:
    """Where the scores go, what lost, which failures stay, and which settings went in circles."""
    scores = {node.iteration: node.score for node in nodes if node.score is not None}
    judged = [node for node in nodes if node.iteration in scores]
    notes = [f"{len(judged)} of {len(nodes)} iterations judged; trend: {trend([*scores.values()])}"]
    lost = [
        (scores[node.parent] - scores[node.iteration], node)
        for node in judged
        if node.parent in scores
    ]
    worst = sorted((pair for pair in lost if pair[0] > _CLEAR_STEP), key=lambda pair: -pair[0])
    notes += [
        f"iteration {n.iteration} lost {format_score(loss)} against {n.parent}"
        for loss, n in worst[:2]
    ]
    counts = Counter(tag for node in judged for tag in set(node.failure_tags))
    staying = [f"{tag} in {n}" for tag, n in counts.most_common(4) if n >= max(2, len(judged) / 3)]
    if staying:
        notes.append(f"failures that stay, of {len(judged)} iterations: {', '.join(staying)}")
    for three in zip(judged, judged[1:], judged[2:], strict=False):
        first, second, third = (settings.get(node.iteration, {}) for node in three)
        names = [n for n in third if n in second and first.get(n) == third[n] != second[n]]
        if names:
            where = ", ".join(str(node.iteration) for node in three)
            notes.append(f"iterations {where} go back and forth in {', '.join(names[:4])}")
    return notes[:12]


def trend(scores: Sequence[float]) -> str:
    """Return where the last scores go."""
    if len(scores) < 2:
        return "too few"
    if scores[-1] > max(scores[:-1]) + _CLEAR_STEP:
        return "new best"
    last = scores[-_WINDOW:]
    if max(last) - min(last) < _PLATEAU:
        return "plateau"
    steps = [after - before for before, after in pairwise(last)]
    if all(step >= 0 for step in steps):
        return "improving"
    return "declining" if all(step <= 0 for step in steps) else "erratic"


# --- numbers of an episode ------------------------------------------------------------------------


def episode_files(run: RunView) -> dict[str, Path]:
    """The judged episodes of a run by label, then those of the checkpoint's own evaluation."""
    judgment = run.judgment
    if judgment is None:
        return {}
    files = {
        each.label: run.record.path / "judged" / f"trajectory_{each.label}.npz"
        for each in judgment.rollouts
    }
    if judgment.step is not None:
        files |= {name: run.record.trajectory_file(judgment.step, name) for name in ROLLOUT_LABELS}
    return {label: file for label, file in files.items() if file.is_file()}


def table(episode: RecordedEpisode, columns: Sequence[str], first: int, last: int | None) -> str:
    """Some columns of an episode, at most MAX_ROWS evenly spaced steps of it.

    Raises ValueError for what is not there, saying what is.
    """
    if not 1 <= len(columns) <= MAX_COLUMNS:
        raise ValueError(f"ask for 1 to {MAX_COLUMNS} columns, not {len(columns)}")
    series = {name: _series(episode, name) for name in columns}
    end = episode.length - 1 if last is None else min(last, episode.length - 1)
    if not 0 <= first <= end:
        raise ValueError(f"there are steps 0 to {episode.length - 1}, not {first} to {last}")
    count = min(MAX_ROWS, end - first + 1)
    rows = np.unique(np.linspace(first, end, count).round().astype(int))
    lines = [" ".join(("step", *columns))]
    lines += [" ".join((str(i), *(f"{each[i]:.4g}" for each in series.values()))) for i in rows]
    return "\n".join(lines)


def _series(episode: RecordedEpisode, name: str) -> Column:
    match = _COLUMN.fullmatch(name.strip())
    columns = dict(episode.columns)
    for term, values in episode.reward_terms.items():
        columns[TERM_PREFIX + term if term in columns else term] = values
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
