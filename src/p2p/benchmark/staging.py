"""Stages: the cases of a benchmark in an order in which each part is a fair sample of the whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise, zip_longest

from p2p.benchmark.suite import DIFFICULTIES, Case
from p2p.contracts import field_error


def in_stages(cases: Sequence[Case], num_stages: int) -> tuple[tuple[Case, ...], ...]:
    """Every case once, in at most `num_stages` stages whose sizes differ by at most one.

    Difficulties are spread evenly over the stages, and environments take turns inside each
    difficulty. Raises ValueError for less than one stage.
    """
    if num_stages < 1:
        raise field_error("num_stages", f"{num_stages} is too few: at least one is needed")
    ordered = _fair_order(cases)
    stages = min(num_stages, len(ordered))
    bounds = [len(ordered) * number // stages for number in range(stages + 1)]
    return tuple(tuple(ordered[a:b]) for a, b in pairwise(bounds))


def _fair_order(cases: Sequence[Case]) -> list[Case]:
    placed: list[tuple[float, int, Case]] = []
    for rank, difficulty in enumerate(DIFFICULTIES):
        mine = [case for case in cases if case.difficulty == difficulty]
        # Each difficulty begins with another environment, else a stage has one in all three.
        group = _by_turns(mine, first=rank / len(DIFFICULTIES))
        placed += [((i + 0.5) / len(group), rank, case) for i, case in enumerate(group)]
    return [case for *_, case in sorted(placed, key=lambda item: item[:2])]


def _by_turns(cases: Sequence[Case], first: float) -> list[Case]:
    by_env: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_env[case.env_id].append(case)
    groups = list(by_env.values())
    begin = int(first * len(groups))
    turns = zip_longest(*groups[begin:], *groups[:begin])
    return [case for turn in turns for case in turn if case is not None]
