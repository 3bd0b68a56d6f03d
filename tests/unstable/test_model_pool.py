"""The pool: registration, match counts, exploration, state, ratings."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from unstable.core import ExplorationTracker, Rating
from unstable.model_pool import ModelPool
from unstable.samplers import RATING_SYSTEMS, SAMPLERS, TrueSkill

MOVES = ["[0]", "[4]", "[8]"]


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def log_model_pool(self, *args: Any) -> None:
        self.heard.append(args)


def pool(
    mode: str | dict[str, float] = "mirror", checkpoints: int = 1, **options: Any
) -> ModelPool:
    made = ModelPool(mode, options.pop("max_active_lora", 4), **options)
    for iteration in range(checkpoints):
        made.add_checkpoint(f"adapters/{iteration}", iteration)
    return made


def rating(of: ModelPool, uid: str) -> Rating:
    return of.models[uid].rating


def drawn(of: ModelPool, times: int = 2000, me: str | None = None) -> Counter[str]:
    return Counter(of.sample(me or of.current_uid()) for _ in range(times))


# --- who is there -------------------------------------------------------------------------


def test_a_pool_begins_with_the_base_model_as_documented():
    made = ModelPool(sample_mode="mirror", max_active_lora=3)
    made.add_checkpoint(path=None, iteration=-1)
    assert made.current_uid() == made.latest_ckpt() == "ckpt--1"
    assert made.ckpt_path("ckpt--1") == (None, "checkpoint")
    assert made.sample("ckpt--1") == "ckpt--1"


def test_fixed_players_are_added_once():
    made = pool()
    uid = made.add_fixed("random-legal", prior_mu=20.0)
    made.push_game_outcome("ckpt-0", uid, 1.0, MOVES, "A")
    after = rating(made, uid)
    assert made.add_fixed("random-legal") == uid == "fixed-random-legal"
    assert rating(made, uid) == after
    assert made.ckpt_path(uid) == ("random-legal", "fixed")


def test_new_checkpoint_inherits_rating_with_more_sigma():
    made = pool()
    made.add_fixed("x")
    for _ in range(30):
        made.push_game_outcome("ckpt-0", "fixed-x", 1.0, MOVES, "A")
    before = rating(made, "ckpt-0")
    made.add_checkpoint("adapters/1", 1)
    assert rating(made, "ckpt-1") == Rating(before.mu, 2 * before.sigma)


def test_rewritten_checkpoint_keeps_its_rating():
    made = pool(checkpoints=3)
    made.add_fixed("x")
    made.push_game_outcome("ckpt-2", "fixed-x", 1.0, MOVES, "A")
    before = rating(made, "ckpt-2")
    made.add_checkpoint("elsewhere/2", 2)
    assert rating(made, "ckpt-2") == before
    assert made.ckpt_path("ckpt-2") == ("elsewhere/2", "checkpoint")
    assert made.current_uid() == "ckpt-2"


@pytest.mark.parametrize("mode", SAMPLERS)
def test_the_active_pool_is_bounded_and_has_the_current_one(mode):
    made = pool(mode, checkpoints=12, max_active_lora=3)
    active = {uid for uid, model in made.models.items() if model.active}
    assert len(active) == 3
    assert "ckpt-11" in active


def test_an_unknown_mode_and_impossible_bounds_are_refused():
    with pytest.raises(ValueError, match="match-quality"):
        ModelPool("nearest", 3)
    with pytest.raises(ValueError, match="max_active_lora"):
        ModelPool("mirror", 0)
    with pytest.raises(ValueError, match="lag_range"):
        ModelPool("lagged", 3, lag_range=(7, 1))
    with pytest.raises(ValueError, match="openskill"):
        ModelPool("mirror", 3, ratings="elo")


# --- ratings ------------------------------------------------------------------------------


def test_mirror_games_do_not_move_ratings():
    made = pool()
    before = rating(made, "ckpt-0")
    for _ in range(10):
        made.push_game_outcome("ckpt-0", "ckpt-0", 1.0, MOVES, "A")
    assert rating(made, "ckpt-0") == before
    assert made.snapshot()["match_counts"] == [["ckpt-0", "ckpt-0", 10]]


@pytest.mark.parametrize("reward", [1.0, 0.2, 17, 1e-6])
def test_rewards_of_any_scale_are_rated(reward):
    won, lost = pool(), pool()
    for made, sign in ((won, 1), (lost, -1)):
        made.add_fixed("x")
        made.push_game_outcome("ckpt-0", "fixed-x", sign * reward, MOVES, "A")
    assert rating(won, "ckpt-0").mu > 25.0 > rating(won, "fixed-x").mu
    assert rating(lost, "ckpt-0").mu < 25.0 < rating(lost, "fixed-x").mu


@pytest.mark.parametrize("system", ["trueskill", "openskill"])
@pytest.mark.parametrize("seats", [3, 4])
@pytest.mark.parametrize("winners", [1, 2])
def test_several_seats_do_not_inflate_ratings(system, seats, winners):
    moved = []
    uids = ("ckpt-0", *["fixed-x"] * (seats - 1))
    for winning in combinations(range(seats), winners):  # among equals each is as likely
        made = pool(ratings=system)
        made.add_fixed("x")
        rewards = [1.0 if seat in winning else -1.0 for seat in range(seats)]
        made.push_outcome(uids, rewards, MOVES, "A")
        assert made.snapshot()["match_counts"] == [["ckpt-0", "fixed-x", 1]]
        assert (rating(made, "ckpt-0").mu > 25.0) == (0 in winning)
        moved.append([rating(made, uid).mu for uid in ("ckpt-0", "fixed-x")])
    assert [fmean(mus) for mus in zip(*moved, strict=True)] == pytest.approx([25.0] * 2, abs=0.02)


@pytest.mark.parametrize(("opponent", "reward"), [("fixed-nobody", 1.0), ("fixed-x", float("nan"))])
def test_unrated_games_are_counted(opponent, reward):
    made = pool()
    made.add_fixed("x")
    before = rating(made, "ckpt-0")
    made.push_game_outcome("ckpt-0", opponent, reward, MOVES, "A")
    assert rating(made, "ckpt-0") == before
    assert made.snapshot()["unrated"] == 1


# --- choosing -----------------------------------------------------------------------------


def test_fixed_is_uniform_over_fixed_players():
    made = pool("fixed", checkpoints=3)
    with pytest.raises(LookupError, match="add_fixed"):
        made.sample("ckpt-2")
    for name in "abc":
        made.add_fixed(name)
    counts = drawn(made)
    assert set(counts) == {"fixed-a", "fixed-b", "fixed-c"}
    assert all(550 < count < 790 for count in counts.values())


def test_lagged_respects_its_range():
    made = pool("lagged", checkpoints=12, max_active_lora=20, lag_range=(2, 4))
    counts = drawn(made)
    assert set(counts) == {"ckpt-9", "ckpt-8", "ckpt-7"}
    assert all(550 < count < 790 for count in counts.values())


def test_sampler_without_candidates_returns_current():
    for mode in ("lagged", "match-quality", "ts-dist", "exploration"):
        assert pool(mode).sample("ckpt-0") == "ckpt-0"


@pytest.mark.parametrize("mode", ["match-quality", "ts-dist", "exploration"])
def test_equal_opponents_are_sampled_equally(mode):
    made = pool(mode, checkpoints=1)
    for name in "abcd":
        made.add_fixed(name)
    counts = drawn(made, 4000)
    assert set(counts) == {f"fixed-{name}" for name in "abcd"}
    assert all(880 < count < 1120 for count in counts.values())


def test_modes_can_be_mixed_by_their_shares():
    made = pool(
        {"mirror": 0.75, "lagged": 0.25}, checkpoints=3, max_active_lora=3, lag_range=(1, 2)
    )
    counts = drawn(made, 4000)
    assert abs(counts["ckpt-2"] - 3000) < 150
    assert abs(counts["ckpt-0"] - counts["ckpt-1"]) < 150


def test_share_of_an_empty_mode_goes_to_the_others():
    made = pool({"mirror": 0.5, "fixed": 0.5}, checkpoints=2)
    assert drawn(made, 50) == {"ckpt-1": 50}


def test_a_mixture_of_nothing_is_refused():
    with pytest.raises(ValueError, match="share above 0"):
        pool({"mirror": 0.0})
    with pytest.raises(ValueError, match="no sample_mode 'mirrored'"):
        pool({"mirrored": 1.0})


def test_exploration_prefers_novel_opponents():
    made = pool("exploration")
    made.add_fixed("dull")
    made.add_fixed("odd")
    for game in range(60):
        made.push_game_outcome("ckpt-0", "fixed-dull", 1.0, MOVES, "A")
        made.push_game_outcome("ckpt-0", "fixed-odd", 1.0, [f"[{game}]", f"[{game * 7}]"], "A")
    assert made.novelty("fixed-odd") > 0.9
    assert made.novelty("fixed-dull") < 0.1
    counts = drawn(made)
    assert counts["fixed-odd"] > 20 * counts["fixed-dull"]
    made.add_fixed("unplayed")
    assert drawn(made)["fixed-unplayed"] > 500


def test_a_sampler_is_one_small_object():
    class Oldest:
        def weights(self, pool, me):
            return {next(iter(pool.models)): 1.0}

        def keep(self, pool, uid):
            return float(pool.lag(uid))

    made = ModelPool(Oldest(), 2)
    for iteration in range(5):
        made.add_checkpoint(None, iteration)
    assert made.sample() == "ckpt-0"
    assert [uid for uid, model in made.models.items() if model.active] == ["ckpt-0", "ckpt-4"]


# --- telling and keeping ------------------------------------------------------------------


def test_pool_snapshots_are_rate_limited():
    listener = Listener()
    made = pool(tracker=listener, snapshot_seconds=3600.0)
    made.add_fixed("x")
    heard = len(listener.heard)
    for _ in range(100):
        made.push_game_outcome("ckpt-0", "fixed-x", 1.0, MOVES, "A")
    assert len(listener.heard) == heard
    made.snapshot()
    match_counts, ratings, exploration = listener.heard[-1]
    assert match_counts == {("ckpt-0", "fixed-x"): 100}
    assert ratings["ckpt-0"]["mu"] > ratings["fixed-x"]["mu"]
    assert exploration["A"]["Pct. Unique Action 1-gram"] == pytest.approx(3 / 300)


@pytest.mark.parametrize("mode", SAMPLERS)
def test_a_restored_pool_continues_identically(mode):
    def play_on(made: ModelPool, games: int) -> list[str]:
        chosen = []
        for game in range(games):
            opponent = made.sample(made.current_uid())
            chosen.append(opponent)
            moves = [f"[{(game * k) % 9}]" for k in range(5)]
            made.push_game_outcome(
                made.current_uid() or "", opponent, float(game % 3 - 1), moves, "A"
            )
        return chosen

    one, other = pool(mode, checkpoints=6, seed=1), ModelPool(mode, 4, seed=2)
    one.add_fixed("x")
    play_on(one, 40)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for made in (one, other):
        made.add_checkpoint("adapters/6", 6)
    assert play_on(one, 40) == play_on(other, 40)
    assert one.state_dict() == other.state_dict()


def test_files_of_active_checkpoints_are_kept_for_other_machines(tmp_path: Path):
    pool = ModelPool("mirror", max_active_lora=2)
    pool.add_checkpoint(None, -1)
    for number in range(4):
        pool.add_checkpoint(f"/elsewhere/iteration-{number}", number, {"adapter": bytes([number])})
    kept = [number for number in range(4) if pool.adapter_files(f"/elsewhere/iteration-{number}")]
    assert len(kept) <= 2
    assert pool.adapter_files("/elsewhere/iteration-3") == {"adapter": b"\x03"}
    (tmp_path / "adapter.json").write_bytes(b"{}")
    assert pool.adapter_files(str(tmp_path)) is None  # no checkpoint: not to be read
    pool.add_checkpoint(str(tmp_path), 4)
    assert pool.adapter_files(str(tmp_path)) == {"adapter.json": b"{}"}


def test_retire_keeps_newest_spread_active_and_wanted():
    made = pool("mirror", max_active_lora=3)
    for iteration in range(1, 101):
        made.add_checkpoint(f"adapters/{iteration}", iteration)
        made.retire(8, ["ckpt-37"])
    gone = set(made.retire(8, ["ckpt-37"]))
    left = [n for n in range(101) if f"adapters/{n}" not in gone]
    assert left[-8:] == [*range(93, 101)]
    assert 37 in left
    spread = left[:-8]
    assert 4 <= len(spread) <= 10
    gaps = [b - a for a, b in pairwise(spread)]
    assert max(gaps) <= 16
    assert all(model.path_or_name not in gone for model in made.models.values() if model.active)


def test_retired_checkpoints_are_never_sampled_again():
    made = pool("ts-dist", checkpoints=12, max_active_lora=3)
    gone = made.retire(2)
    assert gone
    again = ModelPool("ts-dist", 3)
    again.load_state_dict(json.loads(json.dumps(made.state_dict())))
    for one in (made, again):
        for uid, model in one.models.items():  # now those would be the most wanted
            near = model.path_or_name in gone or uid == one.current_uid()
            model.rating = Rating(25.0 if near else 90.0, 1.0)
        one.add_checkpoint("adapters/12", 12)
        chosen = {one.models[uid].path_or_name for uid in drawn(one, 200)}
        assert not chosen & set(gone)
        assert set(gone) <= set(one.retire(2))


# --- n-grams of play ------------------------------------------------------------------------


def test_distinct_ngrams_are_a_share_of_all():
    tracker = ExplorationTracker()
    tracker.add_game(["a", "b", "a", "b"], "A")
    assert tracker.pct_unique("A", 1) == 2 / 4
    assert tracker.pct_unique("A", 2) == 2 / 3  # ab, ba, ab
    assert tracker.pct_unique("A", 4) == 1.0
    assert tracker.pct_unique("A", 5) == tracker.pct_unique("B", 1) == 0.0


def test_add_game_returns_share_of_new_ngrams():
    tracker = ExplorationTracker(ngrams=(1, 2))
    assert tracker.add_game(["a", "b"], "A") == 1.0
    assert tracker.add_game(["a", "b"], "A") == 0.0
    assert tracker.add_game(["a", "c"], "A") == pytest.approx(2 / 3)  # c and ac
    assert tracker.add_game(["a", "b"], "B") == 1.0
    assert tracker.add_game([], "A") == 0.0


SYSTEM = TrueSkill()


@pytest.mark.parametrize("scores", [(1, 0), (0, 1), (0, 0)])
@pytest.mark.parametrize("gap", [100.0, 1000.0, 1e5])
def test_extreme_rating_gaps_stay_finite(gap, scores):
    one, other = SYSTEM.rate([Rating(0.0, 1.0), Rating(gap, 1.0)], scores)
    assert all(map(math.isfinite, (one.mu, one.sigma, other.mu, other.sigma)))
    assert one.sigma > 0
    assert other.sigma > 0


@pytest.mark.parametrize("name", RATING_SYSTEMS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_ratings_depend_on_the_order_of_scores(name, scale):
    system = RATING_SYSTEMS[name]()
    prior = system.prior
    won, second, last = system.rate([prior] * 3, [3 * scale, 0.0, -scale])
    assert won.mu > second.mu > last.mu
    assert [r.mu for r in system.rate([prior] * 3, [3, 2, 1])] == [won.mu, second.mu, last.mu]
    assert all(r.sigma < prior.sigma for r in (won, second, last))


@pytest.mark.parametrize("scores", [(2, 1, 0), (0, 0, 0), (1, 1, 0)])
def test_extreme_ratings_of_three_stay_finite(scores):
    ratings = [Rating(0.0, 0.5), Rating(500.0, 0.5), Rating(9000.0, 0.5)]
    assert all(math.isfinite(r.mu) and r.sigma > 0 for r in SYSTEM.rate(ratings, scores))
