"""Stages are fair samples, and lose nobody."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark_folder import a_case
from p2p.benchmark.planning import in_stages
from p2p.benchmark.suite import SHIPPED, Case, load_suite

CASES = st.lists(
    st.tuples(st.sampled_from(["easy", "medium", "hard"]), st.sampled_from("ABC")), min_size=1
).map(lambda rows: [a_case(n, difficulty=hard, env_id=env) for n, (hard, env) in enumerate(rows)])


@given(CASES, st.integers(1, 40))
def test_every_case_is_in_one_stage_and_stages_are_equally_large(
    cases: list[Case], num_stages: int
) -> None:
    stages = in_stages(cases, num_stages)
    assert sorted(case.number for stage in stages for case in stage) == list(range(len(cases)))
    sizes = [len(stage) for stage in stages]
    assert len(stages) == min(num_stages, len(cases))
    assert max(sizes) - min(sizes) <= 1


def test_each_stage_of_the_shipped_suite_has_all_difficulties_and_many_environments() -> None:
    for stage in in_stages(load_suite(SHIPPED), 5):
        counts = Counter(case.difficulty for case in stage)
        assert len(counts) == 3
        assert max(counts.values()) - min(counts.values()) <= 2
        assert len({case.env_id for case in stage}) >= 6


def test_less_than_one_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="0 is too few"):
        in_stages([a_case(0)], 0)
