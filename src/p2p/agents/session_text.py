"""A session in words, short enough for a model: judgements, configurations, lineage, strategy."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from itertools import groupby, pairwise
from typing import Any, Literal

from p2p.agents.requests import PastIteration
from p2p.config import TrainConfig
from p2p.contracts import CriterionScore, JudgmentResult, Lesson, LineageNode, RolloutJudgment
from p2p.records.lineage import Lineage
from p2p.records.session_view import IterationView, RunView, SessionView

MAX_HISTORY = 40
_MOST_DIFF_LINES = 160
_DETAILED, _ONE_LINE = 10, 40
"""So many of the last iterations are told in detail, and so many before them in a line."""
_LONGEST = 160
PLATEAU = 0.05
CLEAR_STEP = 0.02
_WINDOW = 4
_SIMILAR = 0.95
_MOST_NOTES = 6
_MOST_CHANGES = 15

Trend = Literal["too few", "new best", "plateau", "improving", "declining", "erratic"]


def shortened(text: str, longest: int) -> str:
    """On one line, and not longer than this."""
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"


def rounded(value: float) -> float:
    """To four digits: more of them only cost tokens."""
    return float(f"{value:.4g}")


def tunables(config: TrainConfig) -> dict[str, Any]:
    """The hyperparameters that a revision could change, as JSON has them."""
    return config.model_dump(mode="json", include=set(config.tunable))


def nodes_of(view: SessionView) -> dict[int, LineageNode]:
    """All iterations in their order: as the lineage has them, else as far as their files tell."""
    nodes = {number: _unlisted(each) for number, each in view.iterations.items()}
    nodes |= {node.iteration: node for node in view.lineage.data.nodes}
    return dict(sorted(nodes.items()))


def history(view: SessionView) -> tuple[PastIteration, ...]:
    """The last MAX_HISTORY iterations, and the best one."""
    nodes = list(nodes_of(view).values())
    best = view.lineage.best
    kept = [n for n in nodes[:-MAX_HISTORY] if best is not None and n.iteration == best.iteration]
    return tuple(
        PastIteration(
            iteration=node.iteration,
            parent=node.parent,
            score=node.score and rounded(node.score),
            final_return=node.final_return and rounded(node.final_return),
            failure_tags=node.failure_tags[:8],
            changes=shortened(node.changes, 200),
        )
        for node in [*kept, *nodes[-MAX_HISTORY:]]
    )


def score_text(score: float | None, std: float | None = None) -> str:
    """`0.712 ± 0.05`, or that there is none."""
    if score is None:
        return "not judged"
    return f"{score:.3f}" + ("" if std is None else f" ± {std:.2f}")


def judgment_text(judgment: JudgmentResult, *, rollouts: bool = False) -> str:
    """The whole judgement; its episodes in a line each, if asked for."""
    step = "" if judgment.step is None else f" of the checkpoint at step {judgment.step}"
    score = score_text(judgment.intent_score, judgment.score_std)
    passed = "passed" if judgment.passed else "not passed"
    lines = [f"score{step}: {score}, {passed}, judged by {judgment.strategy}"]
    lines += [f"judge {name} could not judge: {why}" for name, why in judgment.unavailable.items()]
    if judgment.agreement is not None:
        lines.append(f"agreement of the judges: {judgment.agreement:.2f}")
    if judgment.confidence is not None:
        lines.append(f"confidence: {judgment.confidence:.2f}")
    lines += criterion_lines(judgment.criteria)
    lines.append(f"failures: {', '.join(judgment.failure_tags) or 'none'}")
    lines.append(f"diagnosis: {shortened(judgment.diagnosis, 1500)}")
    if rollouts:
        lines += [f"episode {n}: {rollout_line(r)}" for n, r in enumerate(judgment.rollouts)]
    return "\n".join(lines)


def criterion_lines(scores: Sequence[CriterionScore]) -> list[str]:
    return [
        f"  {each.id}: {score_text(each.score, each.std)}"
        + ("" if each.value is None else f", measured {each.value:.4g}")
        + (f", {shortened(each.evidence, 200)}" if each.evidence else "")
        for each in scores
    ]


def rollout_line(rollout: RolloutJudgment) -> str:
    tags = f" [{', '.join(rollout.failure_tags)}]" if rollout.failure_tags else ""
    return f"{rollout.label}: {score_text(rollout.score)}{tags}"


def rollout_text(rollout: RolloutJudgment) -> str:
    """One episode with what each judge said of it."""
    lines = [
        rollout_line(rollout),
        *criterion_lines(rollout.criteria),
        f"diagnosis: {shortened(rollout.diagnosis, 800)}",
    ]
    for opinion in rollout.opinions:
        if opinion.available:
            text = f"{score_text(opinion.score)}; {shortened(opinion.diagnosis, 400)}"
        else:
            text = f"could not judge: {shortened(opinion.reason, 300)}"
        lines += [f"judge {opinion.judge}: {text}", *criterion_lines(opinion.criteria)]
    return "\n".join(lines)


def criteria_of(iteration: IterationView) -> tuple[CriterionScore, ...]:
    """How its best run meets the criteria; empty if it is not judged."""
    judgment = iteration.judgment
    return judgment.criteria if judgment else ()


def code_diff(first: IterationView, second: IterationView) -> str:
    lines = list(
        unified_diff(
            first.reward_code.splitlines(),
            second.reward_code.splitlines(),
            f"iteration {first.number}",
            f"iteration {second.number}",
            lineterm="",
            n=2,
        )
    )
    left = len(lines) - _MOST_DIFF_LINES
    lines = lines[:_MOST_DIFF_LINES] + ([f"({left} more lines)"] if left > 0 else [])
    return "\n".join(lines) or "the rewards are the same text"


def config_changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """`name: old -> new`, for what differs."""
    changed = [name for name in second if first.get(name) != second[name]]
    return (
        ", ".join(f"{n}: {json.dumps(first.get(n))} -> {json.dumps(second[n])}" for n in changed)
        or "none"
    )


def run_line(run: RunView, base: TrainConfig) -> str:
    """One run: how it stands, what it was judged, what its configuration changes."""
    judgment, config = run.judgment, run.config
    score = score_text(judgment.intent_score, judgment.score_std) if judgment else "not judged"
    curve = run.curve
    last = f", last evaluation {curve[-1][1]:.4g}" if curve else ""
    failed = f" ({shortened(run.error, 200)})" if run.error else ""
    changes = config_changes(tunables(base), tunables(config)) if config else "unknown"
    return f"{run.run_id}: {run.status}{failed}, score {score}{last}, changes: {changes}"


def _unlisted(iteration: IterationView) -> LineageNode:
    judgment = iteration.judgment or JudgmentResult(intent_score=None)
    return LineageNode(
        iteration=iteration.number,
        score=judgment.intent_score,
        score_std=judgment.score_std,
        passed=judgment.passed,
        failure_tags=judgment.failure_tags,
        diagnosis=judgment.diagnosis,
    )


# --- the lineage ------------------------------------------------------------------------------


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
    lines += [_lesson_line(number, lesson) for number, lesson in enumerate(lessons)]
    return "\n".join(lines)


def _lesson_line(number: int, lesson: Lesson) -> str:
    checked = " (checked by code)" if lesson.tier == "HARD" and lesson.check else ""
    return (
        f"[{number}] {lesson.tier}{checked}, from iteration {lesson.learned_at}: "
        f"{shortened(lesson.text, 240)}"
    )


def _node_line(node: LineageNode, best: LineageNode | None) -> str:
    mark = "*" if node == best else " "
    parent = "new" if node.parent is None else f"from {node.parent}"
    score = ("" if node.score is None else "score ") + score_text(node.score, node.score_std)
    passed = ", passed" if node.passed else ""
    tags = f" [{shortened(', '.join(node.failure_tags), _LONGEST)}]" if node.failure_tags else ""
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
    return [f"    {name}: {shortened(text, _LONGEST)}" for name, text in details.items() if text]


# --- the strategy -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """An iteration: where it stands in the tree, and what was tried."""

    node: LineageNode
    code: str
    hyperparameters: Mapping[str, Any]


def trend(scores: Sequence[float]) -> Trend:
    if len(scores) < 2:
        return "too few"
    if scores[-1] > max(scores[:-1]) + CLEAR_STEP:
        return "new best"
    last = scores[-_WINDOW:]
    if max(last) - min(last) < PLATEAU:
        return "plateau"
    steps = [after - before for before, after in pairwise(last)]
    if all(step >= 0 for step in steps):
        return "improving"
    return "declining" if all(step <= 0 for step in steps) else "erratic"


def strategy_text(attempts: Sequence[Attempt]) -> str:
    judged = [attempt for attempt in attempts if attempt.node.score is not None]
    if not judged:
        return "no iteration is judged yet"
    scores = [_score(attempt) for attempt in judged]
    notes = [*_circles(judged), *_regressions(judged), *_lasting_tags(judged)]
    lines = [
        f"{len(judged)} of {len(attempts)} iterations judged; trend: {trend(scores)}",
        f"phases: {_phases(judged)}",
        *[f"note: {note}" for note in notes[:_MOST_NOTES]],
        "tried:",
        *[_change(attempt, judged) for attempt in judged[-_MOST_CHANGES:]],
    ]
    return "\n".join(lines)


def _score(attempt: Attempt) -> float:
    assert attempt.node.score is not None
    return attempt.node.score


def _phases(judged: Sequence[Attempt]) -> str:
    """Stretches in which the score rose, fell or stayed, as `1-3 rising, 4-6 flat`."""

    def kind(pair: tuple[Attempt, Attempt]) -> str:
        step = _score(pair[1]) - _score(pair[0])
        return "flat" if abs(step) <= CLEAR_STEP else "rising" if step > 0 else "falling"

    groups = [(name, list(pairs)) for name, pairs in groupby(pairwise(judged), kind)]
    phases = [f"{p[0][0].node.iteration}-{p[-1][1].node.iteration} {name}" for name, p in groups]
    return ", ".join(phases[-8:]) or "only one"


def _regressions(judged: Sequence[Attempt]) -> list[str]:
    """Iterations that lost clearly against the one they were based on; the worst first."""
    by_number = {attempt.node.iteration: attempt for attempt in judged}
    lost = [
        (_score(parent) - _score(attempt), attempt.node)
        for attempt in judged
        if (parent := by_number.get(attempt.node.parent or 0)) is not None
    ]
    worst = sorted((pair for pair in lost if pair[0] > CLEAR_STEP), key=lambda pair: -pair[0])
    return [
        f"iteration {node.iteration} lost {loss:.2f} against {node.parent}"
        for loss, node in worst[:2]
    ]


def _lasting_tags(judged: Sequence[Attempt]) -> list[str]:
    if len(judged) < 2:
        return []
    counts = Counter(tag for attempt in judged for tag in set(attempt.node.failure_tags))
    lasting = [(tag, n) for tag, n in counts.most_common() if n >= max(2, 0.3 * len(judged))]
    tags = ", ".join(f"{tag} in {n}" for tag, n in lasting[:4])
    return [f"failures that stay, of {len(judged)} iterations: {tags}"] if tags else []


def _circles(judged: Sequence[Attempt]) -> list[str]:
    """Values and code that went away and came back."""
    notes: list[str] = []
    for first, second, third in zip(judged, judged[1:], judged[2:], strict=False):
        names = [
            name
            for name, value in third.hyperparameters.items()
            if first.hyperparameters.get(name) == value != second.hyperparameters.get(name)
            and name in second.hyperparameters
        ]
        where = f"{first.node.iteration}, {second.node.iteration}, {third.node.iteration}"
        if names:
            notes.append(f"iterations {where} go back and forth in {', '.join(names[:4])}")
        if _alike(first.code, third.code) > _SIMILAR > _alike(first.code, second.code):
            notes.append(f"iterations {where} go back and forth between two rewards")
    return notes[-3:]


def _alike(first: str, second: str) -> float:
    """Share of equal lines."""
    return SequenceMatcher(None, first.splitlines(), second.splitlines(), autojunk=False).ratio()


def _change(attempt: Attempt, judged: Sequence[Attempt]) -> str:
    node = attempt.node
    parents = [other for other in judged if other.node.iteration == node.parent]
    gained = f" ({_score(attempt) - _score(parents[0]):+.2f})" if parents else ""
    changes = " ".join(node.changes.split())[:120] or "the first reward"
    return f"  {node.iteration}: {changes} -> {_score(attempt):.2f}{gained}"
