"""How much of what people write the built-in author understands like the shipped prompt it means.

Run as a script it prints the table: `python tests/agents/builtin/test_paraphrases.py`.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from functools import cache
from itertools import product
from math import isclose
from pathlib import Path
from typing import Literal, NamedTuple

from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.builtin.measures import Measure, exclude_each_other, read_measure
from p2p.agents.builtin.morphology import morphology_of
from p2p.agents.builtin.quantities import quantities_of
from p2p.agents.requests import IntentProposal, IntentRequest
from p2p.benchmark.suite import load_suite
from p2p.contracts import Criterion

PARAPHRASES = Path(__file__).with_name("paraphrases.toml")
COMPARABLE = 0.25
"""How far thresholds and bounds may differ, as a share, and still ask for the same."""
Outcome = Literal["same", "different", "contradictory", "refused"]


class Reading(NamedTuple):
    env_id: str
    original: str
    paraphrase: str
    outcome: Outcome
    unchecked: tuple[str, ...]
    task: tuple[str, ...]
    """What it is measured by, or why it is refused."""


@cache
def propose(env_id: str, prompt: str) -> IntentProposal:
    return write_criteria(IntentRequest(prompt=prompt, env_id=env_id))


def task_of(env_id: str, prompt: str) -> list[tuple[Criterion, Measure]]:
    pairs = []
    for criterion in propose(env_id, prompt).criteria:
        measure = read_measure(criterion.measure, quantities_of(env_id))
        assert measure is not None
        if criterion.category == "task":
            pairs.append((criterion, measure))
    return pairs


def alike(one: tuple[Criterion, Measure], other: tuple[Criterion, Measure]) -> bool:
    """Whether both measure the same quantity in the same direction, by comparable thresholds."""

    def kind(pair: tuple[Criterion, Measure]) -> tuple[object, ...]:
        criterion, measure = pair
        bounds = (measure.low is None, measure.high is None)
        return criterion.comparison, measure.stat, measure.quantity, measure.window, *bounds

    def numbers(pair: tuple[Criterion, Measure]) -> tuple[float, ...]:
        criterion, measure = pair
        return criterion.threshold, measure.low or 0.0, measure.high or 0.0

    return kind(one) == kind(other) and all(
        isclose(a, b, rel_tol=COMPARABLE) for a, b in zip(numbers(one), numbers(other), strict=True)
    )


def contrary(one: tuple[Criterion, Measure], other: tuple[Criterion, Measure], env_id: str) -> bool:
    """Whether no episode meets both; the same the same way, only faster or slower, is not."""
    model = morphology_of(env_id)
    another_pace = (
        one[1].quantity == other[1].quantity
        and one[1].quantity.endswith(("_speed", "_rate"))
        and {one[1].stat, other[1].stat} == {"mean", "miss"}
    )
    return not another_pace and exclude_each_other(one, other, model.horizon * model.spec.dt)


def read(env_id: str, original: str, paraphrase: str) -> Reading:
    wanted, task = task_of(env_id, original), task_of(env_id, paraphrase)
    proposal = propose(env_id, paraphrase)
    outcome: Outcome = "different"
    if not task:
        outcome = "refused"
    elif any(contrary(a, b, env_id) for a, b in product(task, [*wanted, *task])):
        outcome = "contradictory"
    elif all(any(alike(a, b) for b in task) for a in wanted) and len(task) == len(wanted):
        outcome = "same"
    measures = tuple(
        f"{criterion.measure} {criterion.comparison} {criterion.threshold:g}"
        for criterion, _ in task
    )
    return Reading(
        env_id,
        original,
        paraphrase,
        outcome,
        proposal.unused_words,
        measures or (proposal.refusal,),
    )


@cache
def readings(key: str) -> tuple[Reading, ...]:
    groups = tomllib.loads(PARAPHRASES.read_text())[key]
    return tuple(
        read(group["env_id"], group["original"], paraphrase)
        for group in groups
        for paraphrase in group["paraphrases"]
    )


def table(key: str) -> str:
    rows = readings(key)
    counts = Counter(row.outcome for row in rows)
    shares = ", ".join(
        f"{name} {count} ({count / len(rows):.0%})" for name, count in counts.items()
    )
    unchecked = sum(bool(row.unchecked) and row.outcome == "same" for row in rows)
    lines = [f"{key}: {len(rows)} paraphrases: {shares}; same, with unchecked words: {unchecked}"]
    for row in rows:
        if row.outcome != "same" or row.unchecked:
            wanted = [f"{c.measure} {c.threshold:g}" for c, _ in task_of(row.env_id, row.original)]
            lines += [
                f"{row.outcome:13} {row.env_id} “{row.paraphrase}”",
                f"    unchecked: {', '.join(row.unchecked) or '-'}",
            ]
            if row.outcome != "same":
                lines += [f"    gives: {'; '.join(row.task)}", f"    meant: {'; '.join(wanted)}"]
    return "\n".join(lines)


def test_four_of_five_paraphrases_give_the_task_criteria_of_the_prompt_they_mean() -> None:
    for key, least in (("first", 0.9), ("held_out", 0.8)):
        outcomes = Counter(row.outcome for row in readings(key))
        assert outcomes["same"] >= least * outcomes.total(), table(key)
        assert outcomes["contradictory"] == 0, table(key)


def test_every_original_is_a_prompt_of_the_shipped_suite() -> None:
    shipped = {(case.env_id, case.instruction) for case in load_suite("mujoco_prompts")}
    for groups in tomllib.loads(PARAPHRASES.read_text()).values():
        assert {(group["env_id"], group["original"]) for group in groups} <= shipped


if __name__ == "__main__":
    for name in tomllib.loads(PARAPHRASES.read_text()):
        print(table(name))
