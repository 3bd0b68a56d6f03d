import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.resource_auto import Allocation, Machine, find_best_allocation

GB = 10**9


@pytest.mark.parametrize(
    ("runs", "machine", "orders", "expected"),
    [
        (8, Machine(8, 64 * GB), {}, Allocation(8, 1)),  # side by side before threads
        (2, Machine(8, 64 * GB), {}, Allocation(2, 4)),  # left over cores become threads
        # Five runs need two rounds on four cores anyway; three at a time leave as many cores each.
        (5, Machine(4, 64 * GB), {}, Allocation(3, 1)),
        (8, Machine(8, 3 * GB), {}, Allocation(2, 4)),  # memory bounds them
        (8, Machine(8, 64 * GB), {"cores_per_run": 3, "max_parallel": 2}, Allocation(2, 3)),
    ],
)
def test_runs_share_the_machine(
    runs: int, machine: Machine, orders: dict[str, int], expected: Allocation
) -> None:
    assert find_best_allocation(runs, machine, **orders) == expected


@given(st.integers(1, 100), st.integers(1, 256), st.integers(1, 512))
def test_never_more_cores_than_there_are(runs: int, cores: int, memory: int) -> None:
    allocation = find_best_allocation(runs, Machine(cores, memory * GB))
    assert 1 <= allocation.parallel <= runs
    assert allocation.parallel * allocation.cores_per_run <= cores
