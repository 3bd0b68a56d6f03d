"""Who goes first, and where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.scheduler.writer import JobInLine, Room, Waiting, place


def job(
    name: str, number: int, count: int = 1, *, cores: int = 1, gpus: int = 0, **fields: Any
) -> JobInLine:
    def waiting() -> Iterator[Waiting]:
        for n in range(count):
            yield Waiting(f"{name}{n}", cores, gpus)

    return JobInLine(number, waiting(), **fields)


def room(name: str, cores: int, free: int | None = None, gpus: int = 0) -> Room:
    return Room(name, cores, gpus, cores if free is None else free, gpus)


def in_order(jobs: list[JobInLine]) -> list[JobInLine]:
    return sorted(jobs, key=JobInLine.order)


def runs(jobs: list[JobInLine], rooms: list[Room]) -> list[str]:
    return list(place(in_order(jobs), rooms))


def nodes(jobs: list[JobInLine], rooms: list[Room]) -> dict[str, str]:
    return place(in_order(jobs), rooms)


@pytest.mark.parametrize(
    ("jobs", "cores", "order"),
    [
        ([job("a", 1, 9), job("b", 2, 2, priority=1)], 3, ["b0", "b1", "a0"]),  # the more urgent
        ([job("a", 1, 9), job("b", 2, 9)], 4, ["a0", "b0", "a1", "b1"]),  # equals share
        ([job("a", 1, 9, cores_in_use=3, live=3), job("b", 2, 9)], 3, ["b0", "b1", "b2"]),
        ([job("b", 2), job("a", 1)], 1, ["a0"]),  # the older
        ([job("a", 1, 9, max_parallel=3, live=1)], 8, ["a0", "a1"]),
        ([job("huge", 1, cores=99), job("small", 2, 2)], 2, ["small0", "small1"]),
    ],
)
def test_place_orders_runs_by_priority_and_share(
    jobs: list[JobInLine], cores: int, order: list[str]
) -> None:
    assert runs(jobs, [room("n", cores)]) == order


def test_place_keeps_to_nodes_and_spreads_runs() -> None:
    placed = nodes([job("a", 1, 4, nodes=frozenset({"m"}))], [room("n", 8), room("m", 2)])
    assert placed == {"a0": "m", "a1": "m"}
    placed = nodes([job("a", 1, 4)], [room("n", 2), room("m", 4)])
    assert sorted(placed.values()) == ["m", "m", "m", "n"]


def test_place_leaves_gpus_to_runs_that_need_them() -> None:
    rooms = [room("gpu", 8, gpus=1), room("cpu", 2)]
    placed = nodes([job("a", 1, 2), job("b", 2, 2, gpus=1)], rooms)
    assert placed == {"a0": "cpu", "a1": "cpu", "b0": "gpu"}


def test_place_reserves_a_node_for_a_large_run() -> None:
    rooms = [room("n", 4, free=2)]
    assert runs([job("large", 1, cores=4), job("small", 2, 9)], rooms) == []
    both = [room("n", 4, free=2), room("m", 2)]
    placed = nodes([job("large", 1, cores=4), job("small", 2, 9)], both)
    assert placed == {"small0": "m", "small1": "m"}


def test_place_reads_no_runs_when_nodes_are_full() -> None:
    class Never(Iterator[Waiting]):
        def __next__(self) -> Waiting:
            raise AssertionError("asked")

    assert place([JobInLine(1, Never())], [room("n", 4, free=0)]) == {}


@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 2), st.integers(0, 4), st.integers(-1, 1)),
        max_size=6,
    ),
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 2)), min_size=1, max_size=4),
)
def test_place_never_overbooks_a_node(
    wanted: list[tuple[int, int, int, int]], machines: list[tuple[int, int]]
) -> None:
    jobs = [
        job(f"j{n}_", n, count, cores=cores, gpus=gpus, priority=priority)
        for n, (cores, gpus, count, priority) in enumerate(wanted)
    ]
    rooms = [room(f"n{n}", cores, gpus=gpus) for n, (cores, gpus) in enumerate(machines)]
    place(in_order(jobs), rooms)
    assert all(room.free_cores >= 0 and room.free_gpus >= 0 for room in rooms)


def test_run_may_name_other_nodes_than_its_job() -> None:
    here = Waiting("gate", 1, nodes=frozenset({"b"}))
    line = JobInLine(1, iter([Waiting("case", 1), here]), nodes=frozenset({"a"}))
    assert nodes([line], [room("a", 4), room("b", 1)]) == {"case": "a", "gate": "b"}
