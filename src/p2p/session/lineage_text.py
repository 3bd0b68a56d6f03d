"""A lineage in words: every iteration has a line, the last ones more, and the whole is bounded."""

from __future__ import annotations

import json
from collections.abc import Sequence

from p2p.contracts import Lesson, LineageNode

DETAILED = 10
ONE_LINE = 40
_LONGEST = 160


def lineage_text(
    nodes: Sequence[LineageNode], best: LineageNode | None, lessons: Sequence[Lesson]
) -> str:
    """The tree with explicit parents, then the lessons by number."""
    if not nodes:
        return "no iterations yet"
    lines = ["Iterations, each with the one it was based on; * is the best:"]
    older, last = nodes[:-DETAILED], nodes[-DETAILED:]
    left_out = [node for node in older[:-ONE_LINE] if node != best]
    if left_out:
        lines.append(f"({len(left_out)} earlier iterations left out)")
    lines += [_line(node, best) for node in older if node not in left_out]
    lines += [line for node in last for line in (_line(node, best), *_details(node))]
    lines.append("Lessons:" if lessons else "No lessons yet.")
    lines += [lesson_line(number, lesson) for number, lesson in enumerate(lessons)]
    return "\n".join(lines)


def lesson_line(number: int, lesson: Lesson) -> str:
    """One lesson, by its number."""
    checked = " (checked by code)" if lesson.tier == "HARD" and lesson.check else ""
    return (
        f"[{number}] {lesson.tier}{checked}, from iteration {lesson.learned_at}: "
        f"{shortened(lesson.text, 240)}"
    )


def shortened(text: str, longest: int = _LONGEST) -> str:
    """On one line, and not longer than this."""
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"


def _line(node: LineageNode, best: LineageNode | None) -> str:
    mark = "*" if node == best else " "
    parent = "new" if node.parent is None else f"from {node.parent}"
    spread = "" if node.score_std is None else f" ± {node.score_std:.2f}"
    score = "not judged" if node.score is None else f"score {node.score:.3f}{spread}"
    passed = ", passed" if node.passed else ""
    tags = f" [{shortened(', '.join(node.failure_tags))}]" if node.failure_tags else ""
    return f"{mark}{node.iteration} ({parent}): {score}{passed}{tags}"


def _details(node: LineageNode) -> list[str]:
    changed = json.dumps(node.hp_changes, default=str) if node.hp_changes else ""
    told = {
        "changes": node.changes,
        "hyperparameters": changed,
        "return": "" if node.final_return is None else f"{node.final_return:.4g}",
        "diagnosis": node.diagnosis,
        "lesson": node.lesson,
    }
    return [f"    {name}: {shortened(text)}" for name, text in told.items() if text]
