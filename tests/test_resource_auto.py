import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.resource_auto import Allocation, Machine, detect_machine, find_best_allocation

GB = 10**9


def test_this_machine_has_a_core_and_memory() -> None:
    machine = detect_machine()
    assert machine.cores >= 1
    assert machine.memory_bytes > 10**8


def test_runs_side_by_side_come_before_threads() -> None:
    assert find_best_allocation(8, Machine(8, 64 * GB)) == Allocation(8, 1)


def test_left_over_cores_become_threads() -> None:
    assert find_best_allocation(2, Machine(8, 64 * GB)) == Allocation(2, 4)


def test_an_uneven_last_round_is_levelled_out() -> None:
    # Five runs need two rounds on four cores anyway; three at a time leave as many cores each.
    assert find_best_allocation(5, Machine(4, 64 * GB)) == Allocation(3, 1)


def test_memory_bounds_the_runs_at_once() -> None:
    assert find_best_allocation(8, Machine(8, 3 * GB)).parallel == 2


def test_orders_are_followed() -> None:
    assert find_best_allocation(
        8, Machine(8, 64 * GB), cores_per_run=3, max_parallel=2
    ) == Allocation(2, 3)


@given(st.integers(1, 100), st.integers(1, 256), st.integers(1, 512))
def test_never_more_cores_than_there_are(runs: int, cores: int, memory: int) -> None:
    allocation = find_best_allocation(runs, Machine(cores, memory * GB))
    assert 1 <= allocation.parallel <= runs
    assert allocation.parallel * allocation.cores_per_run <= cores


def test_no_runs_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one run"):
        find_best_allocation(0)
