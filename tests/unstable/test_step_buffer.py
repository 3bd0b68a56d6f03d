"""The buffer: what goes in, what is dropped, what comes out."""

from __future__ import annotations

import csv
import json
import threading
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

import unstable.buffer
import unstable.reward_transformations as retra
from unstable.buffer import StepBuffer
from unstable.core import BaseTracker, Step, Trajectory


def game(name: str, turns: int = 3, reward: float = 1.0, group: str = "") -> Trajectory:
    return Trajectory(
        pid=[0] * turns,
        obs=[f"{name} obs {i}" for i in range(turns)],
        actions=[f"{name} act {i}" for i in range(turns)],
        final_rewards={0: reward, 1: -reward},
        format_feedbacks=[{"correct_answer_format": True, "invalid_move": False}] * turns,
        prompt_ids=[[1, 2, i] for i in range(turns)],
        completion_ids=[[3, i] for i in range(turns)],
        logprobs=[[-0.5, -0.25] for _ in range(turns)],
        versions=[4] * turns,
        group=group,
    )


def filled(size: int, **options: object) -> StepBuffer:
    buffer = StepBuffer(size, **options)  # type: ignore[arg-type]
    for i in range(size):
        buffer.add_trajectory(game(f"g{i}", turns=1), 0, "A")
    return buffer


def episodes_in(batch: list[Step]) -> list[list[Step]]:
    """Games of a batch, which has them one after the other."""
    return [list(steps) for _, steps in groupby(batch, lambda step: step.episode)]


def test_trajectory_becomes_complete_steps():
    buffer = StepBuffer(10)
    buffer.add_trajectory(game("g"), 0, "A")
    steps = sorted(buffer.get_batch(3), key=lambda step: step.turn)
    assert steps[2] == Step(
        pid=0, obs="g obs 2", act="g act 2", reward=1.0, env_id="A",
        step_info={"raw_reward": 1.0, "transformed_end_of_game_reward": 1.0, "step_reward": 1.0},
        prompt_ids=[1, 2, 2], completion_ids=[3, 2], logprobs=[-0.5, -0.25], version=4,
        episode=0, turn=2,
    )  # fmt: skip


def test_the_three_transforms_are_applied_in_their_places():
    buffer = StepBuffer(
        10, None,
        retra.ComposeFinalRewardTransforms([retra.WinDrawLossFormatter()]),
        retra.ComposeStepRewardTransforms([retra.RewardForFormat(1.5)]),
        retra.ComposeSamplingRewardTransforms([retra.NormalizeRewardsByEnv()]),
    )  # fmt: skip
    buffer.add_trajectory(game("won", 1, reward=40.0), 0, "A")
    buffer.add_trajectory(game("lost", 1, reward=-40.0), 0, "A")
    won = next(step for step in buffer.get_batch(2) if step.obs.startswith("won"))
    assert won.step_info == {
        "raw_reward": 40.0, "transformed_end_of_game_reward": 1.0, "step_reward": 2.5
    }  # fmt: skip
    assert won.reward == 1.0  # 2.5 less the mean of 2.5 and 0.5


def test_a_single_transform_needs_no_compose():
    buffer = StepBuffer(10, None, retra.WinDrawLossFormatter(), retra.RewardForFormat(0.5))
    buffer.add_trajectory(game("g", 1, reward=9.0), 0, "A")
    assert buffer.get_batch(1)[0].reward == 1.5


def test_baseline_counts_a_two_seat_game_once():
    transform = retra.RoleAdvantageByEnvFormatter(tau=0.5)
    buffer = StepBuffer(10, None, retra.ComposeFinalRewardTransforms([transform]))
    seats = [game("seat0", 1), game("seat1", 1)]
    seats[1].pid = [1]
    buffer.add_game(seats, "A")
    assert transform.baselines["A"] == {0: 0.5, 1: -0.5}
    assert sorted(step.reward for step in buffer.get_batch(2)) == [-1.0, 1.0]


def test_the_size_never_exceeds_the_capacity():
    buffer = StepBuffer(8)
    for i in range(20):
        buffer.add_trajectory(game(f"g{i}"), 0, "A")
        assert buffer.size() <= 8
    assert buffer.size() == 8
    assert buffer.stats()["evicted"] == 52


def test_eviction_is_uniform_over_old_and_new():
    kept: Counter[str] = Counter()
    for seed in range(2000):
        buffer = StepBuffer(4, seed=seed)
        buffer.add_trajectory(game("old", turns=4), 0, "A")
        buffer.add_trajectory(game("new", turns=4), 0, "A")
        kept.update(step.obs for step in buffer.get_batch(4))
    assert len(kept) == 8
    assert all(880 < count < 1120 for count in kept.values())  # 1000 expected, 22 the deviation


def test_batches_are_uniform_without_replacement():
    drawn: Counter[str] = Counter()
    for seed in range(2000):
        batch = filled(8, seed=seed).get_batch(4)
        assert len({step.obs for step in batch}) == 4
        drawn.update(step.obs for step in batch)
    assert all(880 < count < 1120 for count in drawn.values())


@pytest.mark.parametrize("size", [0, 11])
def test_impossible_batch_is_refused(size):
    buffer = filled(10)
    with pytest.raises(ValueError, match=r"batch_size|asked for"):
        buffer.get_batch(size)
    assert buffer.size() == 10


def test_full_buffer_pauses_and_stopped_ends_collection():
    buffer = filled(10)
    assert not buffer.continue_collection()
    assert not buffer.stopped()
    buffer.get_batch(1)
    assert buffer.continue_collection()
    assert buffer.room() == 1
    buffer.stop("enough")
    buffer.stop("again")
    assert not buffer.continue_collection()
    assert buffer.stopped()
    assert buffer.stop_reason() == "enough"
    again = filled(10)
    again.load_state_dict(buffer.state_dict())
    assert not again.stopped()  # a run that is continued collects


@pytest.mark.parametrize(("strategy", "size"), [("prioritised", 4), ("random", 0)])
def test_impossible_settings_are_refused(strategy, size):
    with pytest.raises(ValueError, match=r"random|max_buffer_size"):
        StepBuffer(size, buffer_strategy=strategy)


def test_threads_share_a_buffer():
    buffer = StepBuffer(10**6)
    drawn: list[Step] = []

    def add() -> None:
        for i in range(300):
            buffer.add_trajectory(game(f"g{i}", turns=2), 0, "A")

    adding = [threading.Thread(target=add) for _ in range(4)]
    for thread in adding:
        thread.start()
    while any(thread.is_alive() for thread in adding):
        if buffer.size() >= 8:
            drawn += buffer.get_batch(8)
    assert len(drawn) + buffer.size() == 4 * 300 * 2
    assert buffer.stats()["trajectories"] == 1200


def test_buffer_logs_its_size(tmp_path):
    heard: dict[str, float] = {}

    class Listener(BaseTracker):
        def log_scalars(self, values):
            heard.update(values)

        log_counts = log_scalars

    listener = Listener("run", run_dir=tmp_path)
    filled(10, tracker=listener, write_csv=False).get_batch(4)
    lost = {f"buffer/lost_{reason}": 0 for reason in ("evicted", "cleared", "transformed")}
    assert heard == {"buffer/size": 6.0, "buffer/drawn": 4.0, "buffer/waiting": 0, **lost}


# --- whole games --------------------------------------------------------------------------


def test_episodes_come_whole_and_in_order():
    buffer = StepBuffer(100, buffer_strategy="episodes")
    for i in range(10):
        buffer.add_trajectory(game(f"g{i}", turns=2 + i % 3), 0, "A")
    episodes = episodes_in(buffer.get_batch(9, whole_games=True))
    assert sum(map(len, episodes)) >= 9
    for episode in episodes:
        assert [step.turn for step in episode] == list(range(len(episode)))
        assert len({step.episode for step in episode}) == 1
    assert buffer.size() + sum(map(len, episodes)) == sum(2 + i % 3 for i in range(10))


def test_eviction_takes_whole_episodes():
    buffer = StepBuffer(10, buffer_strategy="episodes")
    for i in range(20):
        buffer.add_trajectory(game(f"g{i}"), 0, "A")
    assert buffer.size() == 9
    assert all(len(episode) == 3 for episode in episodes_in(buffer.get_batch(9)))


def test_groups_can_be_drawn_when_they_are_complete():
    buffer = StepBuffer(100, buffer_strategy="groups", group_size=3)
    for i in range(5):
        buffer.add_trajectory(game(f"g{i}", group="ab"[i % 2]), 0, "A")
    assert buffer.size() == 9  # three games of a; one of b is missing
    assert {step.group for step in buffer.get_batch(9)} == {"a"}
    buffer.add_trajectory(game("last", group="b"), 0, "A")
    assert len(episodes_in(buffer.get_batch(9))) == 3


# --- snapshots ----------------------------------------------------------------------------


def test_each_batch_is_written_as_csv(tmp_path):
    tracker = BaseTracker("run", run_dir=tmp_path)
    buffer = filled(10, tracker=tracker)
    for _ in range(2):
        buffer.get_batch(5)
    buffer.close()
    for number in range(2):
        path = Path(tracker.get_train_dir()) / f"train_data_step_{number}.csv"
        with path.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert len(rows) == 5
        assert list(rows[0]) == ["pid", "obs", "act", "reward", "env_id", "step_info"]
        assert json.loads(rows[0]["step_info"])["raw_reward"] == 1.0


def test_csv_keeps_newlines_quotes_and_surrogates(tmp_path):
    tracker = BaseTracker("run", run_dir=tmp_path)
    buffer = StepBuffer(4, tracker)
    odd = game("g", turns=1)
    odd.obs, odd.actions = ['line\none, "two"'], ["\ud800 half a pair"]
    buffer.add_trajectory(odd, 0, "A")
    buffer.get_batch(1)
    buffer.close()
    assert buffer.stats()["csv_failures"] == 0
    with (Path(tracker.get_train_dir()) / "train_data_step_0.csv").open(newline="") as stream:
        assert next(csv.DictReader(stream))["obs"] == 'line\none, "two"'


def test_snapshots_can_be_replaced_as_documented(tmp_path, monkeypatch):
    seen: list[Path] = []
    monkeypatch.setattr(
        unstable.buffer, "write_training_data_to_file", lambda rows, path: seen.append(path)
    )
    tracker = BaseTracker("run", run_dir=tmp_path)
    buffer = filled(4, tracker=tracker)
    buffer.get_batch(4)
    buffer.close()
    assert [path.name for path in seen] == ["train_data_step_0.csv"]
    assert list(Path(tracker.get_train_dir()).iterdir()) == []


def test_the_learner_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    disk = threading.Event()
    monkeypatch.setattr(
        unstable.buffer, "write_training_data_to_file", lambda rows, path: disk.wait(30)
    )
    buffer = filled(40, tracker=BaseTracker("run", run_dir=tmp_path))
    for _ in range(40):  # more than may wait
        buffer.get_batch(1)
    assert buffer.stats()["csv_skipped"] > 0
    disk.set()
    buffer.close()


def test_failed_csv_write_is_counted(tmp_path, monkeypatch):
    def full(rows, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(unstable.buffer, "write_training_data_to_file", full)
    buffer = filled(4, tracker=BaseTracker("run", run_dir=tmp_path))
    assert len(buffer.get_batch(2)) == 2
    assert len(buffer.get_batch(2)) == 2
    buffer.flush()
    assert buffer.stats()["csv_failures"] == 2
    buffer.close()


# --- state --------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["random", "episodes", "groups"])
def test_a_restored_buffer_continues_identically(strategy):
    def make(seed: int) -> StepBuffer:
        final = retra.ComposeFinalRewardTransforms([retra.RoleAdvantageByEnvFormatter()])
        return StepBuffer(
            20, None, final, buffer_strategy=strategy, group_size=2, seed=seed
        )  # fmt: skip

    one, other = make(1), make(2)
    for i in range(15):
        one.add_trajectory(game(f"g{i}", group=str(i // 2)), 0, "A")
    one.get_batch(4)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for buffer in (one, other):
        for i in range(5):
            buffer.add_trajectory(game(f"h{i}", group=str(7 + i // 2)), 0, "A")
    assert one.get_batch(8) == other.get_batch(8)
    assert one.stats() == other.stats()
