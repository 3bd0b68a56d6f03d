"""The collector without Ray and without a model: a given number of games, and games without end."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from collector_run import ENV, Run
from instant_actor import InstantActor, board_of, empty_cell, nonsense

from unstable.collector import SETTLE_EVERY, CollectionError
from unstable.engines import EngineError


def test_both_seats_of_each_game_reach_the_buffer(tmp_path):
    run = Run(tmp_path)
    counts = run.play(50)
    assert counts == {
        "games": 50, "failed": 0, "filtered": 0, "invalid": 0, "turns": len(run.steps()),
    }  # fmt: skip
    assert len(run.steps()) == len(run.actor.requests)
    assert run.buffer.stats()["trajectories"] == 100
    assert {step.pid for step in run.steps()} == {0, 1}
    assert run.tracker.get_interface_info()["counts"] == {f"collection-{ENV[0]}": 50}
    assert run.pool.snapshot()["match_counts"] == [["ckpt-0", "ckpt-0", 50]]
    assert len(run.collector.flight) == 0


def test_a_policy_wins_as_often_as_it_loses_against_itself(tmp_path):
    """Also where the other seat never came to move."""
    for name, options in (("all", {}), ("filtered", {"filter_opponent_invalid": True})):
        run = Run(tmp_path / name, InstantActor(nonsense), **options)
        assert run.play(60)["invalid"] == 60
        metrics = run.tracker.get_metrics()
        rates = [metrics[f"collection-{ENV[0]}/{n} Rate"] for n in ("Win", "Loss", "Draw")]
        assert rates == [0.5, 0.5, 0.0]
        run.tracker.log_learner({"step": 1})
        assert run.tracker.get_interface_info()["learner"]["reward"] == [0.0]
        assert run.buffer.stats()["trajectories"] == 60
        assert run.tracker.get_interface_info()["counts"] == {
            f"collection-{ENV[0]}": 60, "learner": 1
        }  # fmt: skip


def test_results_do_not_depend_on_timing(tmp_path):
    delays = (None, lambda number: (number * 7919) % 13, lambda number: 40 - number % 40)
    runs = [
        Run(tmp_path / str(i), InstantActor(delay=delay), mode="match-quality", checkpoints=4)
        for i, delay in enumerate(delays)
    ]
    for run, workers in zip(runs, (256, 16, 7), strict=True):
        for _ in range(3):
            run.play(40, num_workers=workers)
    first, *others = runs
    for run in others:
        assert run.steps() == first.steps()
        assert run.pool.state_dict() == first.pool.state_dict()
        assert run.tracker.state_dict() == first.tracker.state_dict()


def test_restored_collector_continues_identically(tmp_path):
    whole, first, second = (
        Run(tmp_path / name, mode="random", checkpoints=3) for name in ("a", "b", "c")
    )
    whole.play(20)
    whole.play(20)
    first.play(20)
    for name in ("collector", "pool", "buffer"):
        state = json.loads(json.dumps(getattr(first, name).state_dict()))
        getattr(second, name).load_state_dict(state)
    second.play(20)
    assert second.steps() == whole.steps()
    assert second.collector.state_dict() == whole.collector.state_dict()


def test_seats_environments_and_opponents_are_drawn_evenly(tmp_path):
    other = ("KuhnPoker-v0-train", 2, "qwen3-zs")
    run = Run(tmp_path, InstantActor(nonsense), mode="fixed", training_envs=[ENV, other])
    run.play(200, num_workers=32)
    assert {tuple(pair) for *pair, _ in run.pool.snapshot()["match_counts"]} == {
        ("ckpt-0", "fixed-random-legal")
    }
    seats = Counter((step.env_id, step.pid) for step in run.steps())
    assert len(seats) == 4
    assert min(seats.values()) > 20


def test_the_version_of_a_step_is_that_of_its_checkpoint(tmp_path):
    run = Run(tmp_path)
    run.play(3)
    run.pool.add_checkpoint("adapters/7", 7)
    run.play(3)
    assert {step.version for step in run.steps()} == {0, 7}
    assert {lora for _, lora, _ in run.actor.requests} == {None, "adapters/7"}


def test_groups_share_the_game_and_are_complete(tmp_path):
    run = Run(tmp_path, group_size=4, mode="random", checkpoints=3)
    run.play(12)
    batch = run.buffer.get_batch(run.buffer.size())
    groups: dict[str, set[int]] = {}
    for step in batch:
        groups.setdefault(step.group, set()).add(step.episode)
    assert {len(episodes) for episodes in groups.values()} == {4}
    beginnings = Counter((step.group, step.obs) for step in batch if step.turn == 0)
    assert max(beginnings.values()) == 4
    with pytest.raises(ValueError, match="multiple of 4"):
        run.play(6)


def test_filter_drops_games_ended_by_opponent(tmp_path):
    """In mirror games who made the invalid move still learns from it."""

    def fails_late(prompt: str, rng: Any) -> str:
        late = sum(cell.islower() for cell in board_of(prompt)) > 1
        return nonsense(prompt, rng) if late else empty_cell(prompt, rng)

    kept = Run(tmp_path / "kept", InstantActor(fails_late))
    kept.play(20)
    left = Run(tmp_path / "left", InstantActor(fails_late), filter_opponent_invalid=True)
    counts = left.play(20)
    assert counts["invalid"] == 20
    assert counts["filtered"] == 0
    assert 0 < len(left.steps()) < len(kept.steps())
    culprits = {step.episode for step in left.steps()}
    assert len(culprits) == 20

    older = Run(
        tmp_path / "older", InstantActor(fails_late), mode="lagged", checkpoints=2,
        filter_opponent_invalid=True,
    )  # fmt: skip
    counts = older.play(20)
    assert 0 < counts["filtered"] < 20
    assert older.buffer.stats()["trajectories"] == 20 - counts["filtered"]


def test_a_game_that_fails_is_counted_and_another_is_played(tmp_path):
    run = Run(tmp_path)
    run.actor.fail = lambda number: number % 50 == 49
    counts = run.play(60)
    assert counts["games"] == 60
    assert counts["failed"] > 2
    assert run.pool.snapshot()["match_counts"] == [["ckpt-0", "ckpt-0", 60]]
    assert "request" in run.collector.stats()["last_failure"]
    share = counts["failed"] / (60 + counts["failed"])
    assert run.tracker.get_metrics()["collector/Failure Rate"] == pytest.approx(share, abs=0.1)


def test_repeated_failures_end_collection_with_reason(tmp_path):
    run = Run(tmp_path)
    run.actor.fail = lambda number: True
    with pytest.raises(CollectionError, match=r"20 games in a row .* is not answered") as caught:
        run.play(1000, num_workers=8)
    assert isinstance(caught.value.__cause__, EngineError)
    assert len(run.collector.flight) == 0
    assert len(run.actor.requests) < 40
    run.actor.fail = lambda number: False  # and can go on
    assert run.play(5)["games"] == 5


def test_unexpected_errors_end_collection(tmp_path):
    def broken(prompt: str, rng: Any) -> str:
        raise KeyError("a bug")

    run = Run(tmp_path, InstantActor(broken))
    with pytest.raises(KeyError, match="a bug"):
        run.play(10)
    assert len(run.collector.flight) == 0


def test_evaluation_plays_half_of_the_games_from_each_seat(tmp_path):
    run = Run(tmp_path, checkpoints=2)
    (row,) = run.evaluate(40)
    assert row["games"] == 40
    assert row["failed"] == 0
    assert row["ckpt_uid"] == "ckpt-1"
    assert row["opponent"] == "random-legal"
    assert row["win_rate_low"] < row["win_rate"] < row["win_rate_high"]
    lines = (tmp_path / "eval_data" / "games.jsonl").read_text().splitlines()
    games = [json.loads(line) for line in lines]
    assert Counter(game["player_id"] for game in games) == {0: 20, 1: 20}
    assert len({game["seed"] for game in games}) == 40
    assert all(game["reason"] and game["num_turns"] for game in games)
    (known,) = run.tracker.get_evaluations()
    assert known == {name: row[name] for name in known}
    assert run.buffer.size() == 0
    assert run.pool.snapshot()["match_counts"] == []


def test_failed_evaluation_has_no_games(tmp_path):
    run = Run(tmp_path)
    run.actor.fail = lambda number: True
    (row,) = run.evaluate(400, num_workers=4)
    assert row["games"] == 0
    assert row["failed"] == 20
    assert "is not answered" in row["error"]


def test_all_players_of_a_larger_game_are_rated(tmp_path):
    liars = ("LiarsDice-v0-train", 3, "qwen3-zs")
    run = Run(
        tmp_path, InstantActor(nonsense), mode="fixed", training_envs=[liars],
        evaluation_envs=[], compact_views=False,
    )  # fmt: skip
    counts = run.play(10)
    assert counts["games"] == 10
    assert run.pool.snapshot()["match_counts"] == [["ckpt-0", "fixed-random-legal", 10]]


def test_a_game_for_one_needs_no_opponent(tmp_path):
    alone = ("GuessTheNumber-v0-train", 1, "qwen3-sp")
    actor = InstantActor(lambda prompt, rng: f"\\boxed{{{rng.randint(1, 20)}}}")
    run = Run(
        tmp_path, actor, training_envs=[alone], evaluation_envs=[alone], compact_views=False
    )  # fmt: skip
    assert run.play(5)["games"] == 5
    (row,) = run.evaluate(5)
    assert row["games"] == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"training_envs": ["TicTacToe-v0-train"]}, "training_envs"),
        ({"training_envs": [("TicTacToe-v0-train", 0, "qwen3-zs")]}, "0 players"),
        ({"evaluation_envs": [("TicTacToe-v0-train", 2, "qwen9")]}, "qwen9"),
        ({"action_extraction": "magic"}, "action_extraction"),
        ({"group_size": 0}, "group_size"),
        ({"evaluation_envs": [("Briscola-v0-train", 2, "default")], "compact_views": False},
         "does not know Briscola"),
        ({"training_envs": [("Briscola-v0-train", 2, "default")], "compact_views": False,
          "random_opening_moves": 2}, "legal moves of Briscola"),
        ({"actors": []}, "num_actors"),
    ],
)  # fmt: skip
def test_collector_refuses_wrong_settings(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        Run(tmp_path, **options).play(1)


KUHN = ("KuhnPoker-v0-train", 2, "qwen3-zs")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


def collect(
    run: Run, meanwhile: Callable[[], Coroutine[None, None, None]], *workers: int
) -> dict[str, int]:
    """Collect, do something meanwhile, stop the buffer."""

    async def both() -> dict[str, int]:
        collecting = asyncio.create_task(run.collector.collect(*workers))
        try:
            await meanwhile()
        finally:
            run.buffer.stop()
            async with asyncio.timeout(30):
                counts = await collecting
        return counts

    return asyncio.run(both())


def test_collect_runs_until_the_buffer_is_stopped(tmp_path):
    run = Run(tmp_path)
    most = 0

    async def watch() -> None:
        nonlocal most
        while run.collector.counts["games"] < 100:
            most = max(most, run.collector.flight.count_running("train"))
            await asyncio.sleep(0)

    counts = collect(run, watch, 12)
    assert counts["games"] >= 100
    assert most == 12
    assert counts["dropped"] <= 12
    assert len(run.collector.flight) == 0
    assert run.buffer.stats()["trajectories"] == 2 * counts["games"]


def test_no_game_is_started_while_the_buffer_is_full(tmp_path):
    run = Run(tmp_path)
    run.buffer.max_buffer_size = 200
    seen: list[int] = []

    async def watch() -> None:
        for _ in range(3):
            await until(lambda: run.buffer.size() == 200 and not len(run.collector.flight))
            requests = len(run.actor.requests)
            await asyncio.sleep(0.5)
            assert len(run.actor.requests) == requests
            seen.append(requests)
            run.buffer.get_batch(100)

    collect(run, watch, 4)
    assert seen == sorted(set(seen))  # and on it went when there was room


def test_games_ending_during_top_up_are_handled(tmp_path):
    """A pool elsewhere takes its time to draw an opponent; games may be over before."""
    run = Run(tmp_path)

    class SlowPool:
        def __getattr__(self, name: str) -> object:
            async def slowly(*args: object) -> object:
                await asyncio.sleep(0.005)
                return getattr(run.pool, name)(*args)

            return slowly

    run.collector.matches._pool = SlowPool()

    async def watch() -> None:
        await until(lambda: run.collector.counts["games"] > 20)

    collect(run, watch, 12)
    assert run.buffer.size() > 100


def test_games_in_flight_are_dropped_at_the_end(tmp_path):
    run = Run(tmp_path, InstantActor(delay=lambda number: 10**9))

    async def watch() -> None:
        await until(lambda: len(run.actor.requests) == 8)

    counts = collect(run, watch, 8)
    assert counts["dropped"] == 8
    assert counts["games"] == 0
    assert run.buffer.size() == 0


def test_evaluation_games_are_capped_per_checkpoint(tmp_path):
    run = Run(tmp_path, InstantActor(nonsense), evaluation_envs=[ENV, KUHN],
              max_eval_games_per_ckpt=5)  # fmt: skip

    async def watch() -> None:
        await until(lambda: run.collector.counts["eval_games"] == 10)
        await asyncio.sleep(0.3)
        run.pool.add_checkpoint("adapters/1", 1)
        await until(lambda: run.collector.counts["eval_games"] == 20)
        await asyncio.sleep(0.3)

    counts = collect(run, watch, 2, 16)
    assert counts["eval_games"] == 20
    lines = (tmp_path / "eval_data" / "games.jsonl").read_text().splitlines()
    games = [json.loads(line) for line in lines]
    played = Counter((game["ckpt_uid"], game["env_id"]) for game in games)
    assert set(played.values()) == {5}
    assert len(played) == 4
    seeds = {
        uid: {g["seed"] for g in games if g["ckpt_uid"] == uid} for uid in ("ckpt-0", "ckpt-1")
    }
    assert seeds["ckpt-0"] == seeds["ckpt-1"]
    assert json.loads(json.dumps(run.collector.state_dict()))["eval_started"] == {
        uid: {f"{env[0]} random-legal": 5 for env in (ENV, KUHN)} for uid in seeds
    }


def test_finish_completes_the_newest_evaluation(tmp_path):
    run = Run(tmp_path, max_eval_games_per_ckpt=60)

    async def finished() -> dict[str, int]:
        collecting = asyncio.create_task(run.collector.collect(8, 1))
        await until(lambda: run.collector.counts["games"] >= 20)
        run.pool.add_checkpoint("adapters/1", 1)
        await until(lambda: bool(run.collector._eval_started["ckpt-1"]))
        before = run.collector.counts["games"]
        run.collector.finish()
        async with asyncio.timeout(30):
            counts = await collecting
        assert counts["games"] <= before + 8
        return counts

    assert asyncio.run(finished())["eval_games"] > 60
    assert not run.buffer.stopped()
    newest = [e for e in run.tracker.get_evaluations() if e["ckpt_uid"] == "ckpt-1"]
    assert [e["games"] for e in newest] == [60]
    assert len(run.collector.flight) == 0


def test_an_evaluation_that_fails_costs_no_training(tmp_path):
    """The opponent is not there: evaluation games fail, once each, and training goes on."""
    run = Run(tmp_path, evaluation_opponent=str(tmp_path), max_eval_games_per_ckpt=30)
    (tmp_path / "adapter_config.json").write_text("{}")
    run.actor.broken_adapters.add(str(tmp_path))

    async def watch() -> None:
        await until(lambda: run.collector.counts["eval_failed"] == 30)
        games = run.collector.counts["games"]
        await until(lambda: run.collector.counts["games"] > games + 20)

    counts = collect(run, watch, 4, 8)
    assert counts["eval_failed"] == 30
    assert counts["failed"] == 0


def test_collect_stops_buffer_when_every_game_fails(tmp_path):
    run = Run(tmp_path)
    run.actor.fail = lambda number: True
    with pytest.raises(CollectionError, match="20 games in a row"):
        asyncio.run(asyncio.wait_for(run.collector.collect(8), 30))
    assert run.buffer.stopped()
    assert len(run.collector.flight) == 0


class SlowTracker:
    """Takes calls as a Ray actor does, and deals with one at a time, slowly."""

    def __init__(self) -> None:
        self.waiting = self.most = 0

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=self._take)

    def _take(self, *args: Any, **options: Any) -> asyncio.Future[None]:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        loop.call_later(0.0005 * self.waiting, self._deal, done)
        return done

    def _deal(self, done: asyncio.Future[None]) -> None:
        self.waiting -= 1
        if not done.cancelled():
            done.set_result(None)


def test_collect_waits_for_a_slow_tracker(tmp_path):
    run = Run(tmp_path)
    run.collector._tracker = tracker = SlowTracker()

    async def watch() -> None:
        await until(lambda: run.collector.counts["games"] >= 3 * SETTLE_EVERY)

    collect(run, watch, 8)
    # Two seats tell it of a game; what is under way lands in between.
    assert tracker.most < 2 * (SETTLE_EVERY + 3 * 8)
