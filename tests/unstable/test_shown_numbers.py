"""Every number that people are shown, computed again from the games that were kept."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from collector_run import Run
from instant_actor import InstantActor, listed_move, nonsense

from unstable.core import ExplorationTracker, Rating, outcome
from unstable.dashboard import View
from unstable.dashboard.sources import RunFiles
from unstable.evaluation import wilson
from unstable.samplers import RATING_SYSTEMS
from unstable.utils.templates import extract_action
from unstable.writers import read_games

TWO, ALONE = ("TicTacToe-v0-train", 2, "qwen3-zs"), ("GuessTheNumber-v0-train", 1, "qwen3-sp")
KEPT = 24
"""Training games; of a checkpoint all up to 32 are kept."""

BATCH = 10


def sometimes_wrong(prompt: str, rng: random.Random) -> str:
    """A move that may be legal, by the rules as TextArena tells them."""
    if rng.random() < 0.1:
        return nonsense(prompt, rng)
    if "Available Moves:" in prompt:
        return listed_move(prompt, rng)
    return f"\\boxed{{{rng.randint(1, 20)}}}"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of some games of two kinds, against itself, older ones and a fixed player."""
    made = Run(
        tmp_path_factory.mktemp("run"), InstantActor(sometimes_wrong), mode="random", checkpoints=3,
        training_envs=[TWO, ALONE], evaluation_envs=[TWO, ALONE], compact_views=False,
    )  # fmt: skip
    made.play(KEPT)
    made.pool.snapshot()
    made.buffer.get_batch(BATCH)
    made.tracker.log_learner({"step": 3, "loss": 0.5})
    for uid in ("ckpt-1", "ckpt-2"):
        made.evaluate(10, ckpt_uid=uid)
    made.tracker.close()
    return made


@pytest.fixture(scope="module")
def view(run: Run) -> View:
    return RunFiles(Path(run.tracker.get_run_dir())).fetch()


def kept(run: Run, kind: Any) -> list[dict[str, Any]]:
    return list(read_games(Path(run.tracker.get_run_dir()), kind))


def rewards_of(game: dict[str, Any]) -> dict[int, float]:
    return {int(seat): reward for seat, reward in game["rewards"].items()}


def our_seats(game: dict[str, Any]) -> list[int]:
    """Where the learner's policy sat."""
    (me,) = [player["uid"] for player in game["players"] if player["learner"]]
    return [player["seat"] for player in game["players"] if player["uid"] == me]


def our_moves(games: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for game in games:
        seats = our_seats(game)
        yield from (move for move in game["moves"] if move["seat"] in seats)


def test_shown_means_match_the_games(run: Run, view: View) -> None:
    games = kept(run, "train")
    assert len(games) == KEPT
    seats = [(game, seat) for game in games for seat in our_seats(game)]
    results = [outcome(rewards_of(game), seat) for game, seat in seats if len(game["players"]) > 1]
    moves = list(our_moves(games))
    expected = {
        "win rate": fmean(result > 0 for result in results),
        "reward": fmean(rewards_of(game)[seat] for game, seat in seats),
        "game length": fmean(len(game["moves"]) for game, _ in seats),
        "format success": fmean(
            extract_action(move["answer"])[1]["correct_answer_format"] for move in moves
        ),
        "invalid moves": fmean(not move["legal"] for move in moves),
        "answer length": fmean(len(move["answer"]) for move in moves),
    }
    assert {number.name: number.value for number in view.collected} == pytest.approx(expected)
    assert 0 < expected["win rate"] < 1
    (reward,) = [curve.values for curve in view.curves if curve.name == "reward"]
    assert reward == pytest.approx((expected["reward"],))


def test_shown_counts_match_the_games(run: Run, view: View) -> None:
    counts = Counter(f"{game['kind']} {game['env_id']}" for game in kept(run, "train"))
    counts += Counter(f"{game['kind']} {game['env_id']}" for game in kept(run, "eval"))
    assert {number.name: number.value for number in view.games} == dict(counts)


def test_shown_evaluations_match_the_games(run: Run, view: View) -> None:
    games = kept(run, "eval")
    assert len(view.win_rates) == 2
    for rate in view.win_rates:
        assert [one.ckpt_uid for one in rate.history] == ["ckpt-1", "ckpt-2"]
        for one in rate.history:
            rewards = []
            results = []
            invalid = 0
            for game in games:
                (mine,) = [player for player in game["players"] if player["learner"]]
                if (game["env_id"], mine["uid"]) == (rate.env_id, one.ckpt_uid):
                    rewards.append(rewards_of(game)[mine["seat"]])
                    results.append(outcome(rewards_of(game), mine["seat"]))
                    invalid += game["ended_by_invalid"] == mine["seat"]
            wins = sum(result > 0 for result in results)
            assert (one.games, one.win_rate) == (len(results), wins / len(results))
            assert (one.low, one.high) == wilson(wins, len(results))
            assert one.reward == pytest.approx(fmean(rewards))
        # The last of them is the newest, whose numbers are shown in full.
        assert rate.draw_rate == results.count(0) / len(results)
        assert rate.invalid_rate == invalid / len(results)
        assert rate.reward_se == pytest.approx(stdev(rewards) / len(rewards) ** 0.5)
        assert rate.players == (1 if rate.env_id == ALONE[0] else 2)


def test_shown_ratings_match_the_games(run: Run, view: View) -> None:
    system = RATING_SYSTEMS["trueskill"]()
    ratings = {row.uid: system.prior for row in view.ratings}
    for uid, before in (("ckpt-1", "ckpt-0"), ("ckpt-2", "ckpt-1")):
        sigma = min(2 * ratings[before].sigma, system.prior.sigma)
        ratings[uid] = Rating(ratings[before].mu, sigma)
    matches: Counter[tuple[str, ...]] = Counter()
    exploration = ExplorationTracker()
    for game in kept(run, "train"):
        actions = [_bracketed(move["action"]) for move in game["moves"]]
        exploration.add_game(actions, game["env_id"])
        if len(game["players"]) == 1:
            continue
        first, second = sorted(game["players"], key=lambda player: not player["learner"])
        pair = first["uid"], second["uid"]
        matches[tuple(sorted(pair))] += 1
        if pair[0] != pair[1]:
            scores = [rewards_of(game)[player["seat"]] for player in (first, second)]
            rated = system.rate([ratings[uid] for uid in pair], scores)
            ratings |= dict(zip(pair, rated, strict=True))
    assert {(match.first, match.second): match.games for match in view.matches} == dict(matches)
    for row in view.ratings:
        assert (row.mu, row.sigma) == pytest.approx((ratings[row.uid].mu, ratings[row.uid].sigma))
    shown = {env_id: {n.name: n.value for n in numbers} for env_id, numbers in view.exploration}
    assert shown == {env_id: pytest.approx(v) for env_id, v in exploration.get_metrics().items()}


def _bracketed(action: str) -> str:
    start, end = action.find("["), action.find("]")
    return (action[start : end + 1] if 0 <= start < end else action.strip())[:80].lower()


def test_shown_status_matches_the_run(run: Run, view: View) -> None:
    games = kept(run, "eval")
    assert view.step == 3
    assert view.buffer_size == sum(1 for _ in our_moves(kept(run, "train"))) - BATCH
    assert games[-1]["id"] in view.latest_game
    assert view.failures == ()
