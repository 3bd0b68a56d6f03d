"""N-gram statistics of play."""

from __future__ import annotations

import json

import pytest

from unstable.core import ExplorationTracker


def test_distinct_ngrams_are_a_share_of_all():
    tracker = ExplorationTracker()
    tracker.add_game(["a", "b", "a", "b"], "A")
    assert tracker.pct_unique("A", 1) == 2 / 4
    assert tracker.pct_unique("A", 2) == 2 / 3  # ab, ba, ab
    assert tracker.pct_unique("A", 4) == 1.0
    assert tracker.pct_unique("A", 5) == tracker.pct_unique("B", 1) == 0.0


def test_what_is_new_in_a_game_is_what_the_window_has_not():
    tracker = ExplorationTracker(ngrams=(1, 2))
    assert tracker.add_game(["a", "b"], "A") == 1.0
    assert tracker.add_game(["a", "b"], "A") == 0.0
    assert tracker.add_game(["a", "c"], "A") == pytest.approx(2 / 3)  # c and ac
    assert tracker.add_game(["a", "b"], "B") == 1.0
    assert tracker.add_game([], "A") == 0.0


def test_a_restored_tracker_continues_identically():
    one, other = ExplorationTracker(window=8), ExplorationTracker(window=8)
    for game in range(20):
        one.add_game([str(game % 3), str(game % 5), "z"], "A")
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for game in range(20):
        moves = [str(game % 4), "z"]
        assert one.add_game(moves, "A") == other.add_game(moves, "A")
    assert one.get_metrics() == other.get_metrics()
