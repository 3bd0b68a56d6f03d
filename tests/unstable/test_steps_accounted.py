"""Every step that was sampled is trained on, or counted under the reason why it is not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from collector_run import Run
from instant_actor import InstantActor, board_of, empty_cell, nonsense
from learner_parts import make_game
from small_run import new_run
from test_learner_updates import learner

from unstable.buffer import StepBuffer
from unstable.commands.train import _describe_losses
from unstable.core import Trajectory
from unstable.reward_transformations import SamplingRewardTransform
from unstable.run.start import start

REASONS = {
    "stale", "too_long", "not_finite", "evicted", "cleared", "transformed", "failed", "filtered",
    "unfinished",
}  # fmt: skip


def resigns_at_first(prompt: str, rng: Any) -> str:
    """In a fifth of the games the first player makes an invalid first move."""
    first = board_of(prompt) == "012345678"
    return nonsense(prompt, rng) if first and rng.random() < 0.2 else empty_cell(prompt, rng)


def accounted(run: Run) -> dict[str, int]:
    """Steps by where they are; nothing was learned yet."""
    played, kept = run.collector.stats(), run.buffer.stats()
    lost = {name: played[name] for name in played if name.startswith("lost_")}
    assert played["steps"] == kept["steps"] + sum(lost.values())
    assert kept["steps"] == kept["size"] + kept["waiting"] + kept["evicted"]
    return {"sampled": played["steps"], "waiting": kept["waiting"], **lost}


def test_forfeits_at_the_first_move_complete_groups(tmp_path: Path):
    run = Run(tmp_path, InstantActor(resigns_at_first), group_size=8)
    run.play(160)
    steps = accounted(run)
    assert run.collector.counts["invalid"] > 16
    assert (steps["waiting"], run.buffer.size()) == (0, steps["sampled"])
    batch = run.buffer.get_batch(run.buffer.size(), whole_groups=True)
    groups = {step.group for step in batch}
    assert len(groups) == 40  # 20 of each seat
    assert {step.pid for step in batch if step.group.endswith("/1")} == {1}


def test_failed_and_filtered_games_complete_groups(tmp_path: Path):
    run = Run(
        tmp_path, InstantActor(resigns_at_first), group_size=4, mode="lagged", checkpoints=2,
        filter_opponent_invalid=True,
    )  # fmt: skip
    run.actor.fail = lambda number: number % 40 == 39
    run.play(160)
    steps = accounted(run)
    assert run.collector.counts["failed"] > 5
    assert run.collector.counts["filtered"] > 5
    assert steps["lost_failed"] > 0
    assert steps["waiting"] == 0


def test_filtered_seats_are_counted(tmp_path: Path):
    def fails_late(prompt: str, rng: Any) -> str:
        late = sum(cell.islower() for cell in board_of(prompt)) > 1
        return nonsense(prompt, rng) if late else empty_cell(prompt, rng)

    run = Run(tmp_path, InstantActor(fails_late), filter_opponent_invalid=True)
    run.play(20)
    steps = accounted(run)
    assert steps["lost_filtered"] == 40  # two of each game: who did not make the invalid move
    assert run.buffer.size() == 40


def test_unfinished_games_are_counted(tmp_path: Path):
    run = Run(tmp_path, InstantActor(resigns_at_first, delay=lambda _: 3), group_size=4)

    async def collect() -> None:
        collecting = asyncio.create_task(run.collector.collect(num_workers=16))
        async with asyncio.timeout(60):
            while run.collector.counts["games"] < 50:
                await asyncio.sleep(0)
        run.buffer.stop()
        await collecting

    asyncio.run(collect())
    steps = accounted(run)
    assert steps["lost_unfinished"] > 0
    assert run.collector.counts["dropped"] > 0
    assert steps["waiting"] > 0
    run.buffer.complete_groups()
    assert run.buffer.stats()["waiting"] == 0
    assert run.buffer.size() == run.buffer.stats()["steps"]


@pytest.mark.parametrize("mode", ["turns", "overlap"])
def test_a_run_accounts_for_every_step(tmp_path: Path, model: str, mode: str):
    """By a model that forfeits at every second first move."""
    config, folder = new_run(
        tmp_path / "run", model, mode=mode, games_per_update=8, batch_size=16, updates=3,
        games={"group_size": 4}, buffer={"strategy": "groups"}, learner={"algorithm": "GRPO"},
    )  # fmt: skip
    result = start(config, folder, model, lambda _: None)
    steps = dict(result.counts["steps"])
    sampled, trained, left = (steps.pop(name) for name in ("sampled", "trained", "left"))
    assert steps.keys() == REASONS
    assert sampled == trained + left + sum(steps.values())
    assert result.counts["invalid"] > 0
    assert trained > 0
    if mode == "turns":
        assert trained == sampled


def test_untrained_steps_of_a_batch_are_counted(folder: str, tmp_path: Path):
    buffer = StepBuffer(100)
    for seed, version in ((1, 0), (2, 5)):
        buffer.add_trajectory(make_game(seed, version=version), 0, "e")
    one = learner(folder, tmp_path, buffer, max_staleness=2, max_train_len=4)
    one._step = 5
    info = one.update_once(8)
    counts = one.step_counts()
    assert counts["stale"] == info["stale_dropped"] == 4
    assert counts["too_long"] == info["too_long_dropped"] > 0
    assert counts["trained"] + counts["too_long"] == 4
    broken = make_game(3, version=5)
    broken.final_rewards[0] = float("nan")
    buffer.add_trajectory(broken, 0, "e")
    one.update_once(4)
    after = one.step_counts()
    assert after["trained"] == counts["trained"]
    assert after["not_finite"] + after["too_long"] - counts["too_long"] == 4


def test_evicted_and_cleared_steps_are_counted(tmp_path: Path):
    class OnlyGood(SamplingRewardTransform):
        def __call__(self, steps: Any, env_id: str | None = None) -> Any:
            return [step for step in steps if step.reward > 0]

    buffer = StepBuffer(6, sampling_reward_transformation=OnlyGood())
    for reward in (1.0, -1.0, 1.0, -1.0):
        seat = Trajectory(pid=[0, 0], obs=["o"] * 2, actions=["a"] * 2, final_rewards={0: reward})
        buffer.add_trajectory(seat, 0, "e")
    batch = buffer.get_batch(4)
    buffer.clear()
    kept = buffer.stats()
    assert (kept["steps"], kept["evicted"], kept["cleared"], kept["size"]) == (8, 2, 2, 0)
    assert len(batch) + kept["transformed"] == 4
    assert kept["transformed"] > 0


def test_game_alone_in_its_group_is_allowed(folder: str, tmp_path: Path):
    from unstable.algorithms import GRPO

    buffer = StepBuffer(100, buffer_strategy="groups", group_size=2)
    buffer.add_game([make_game(1, group="g/0")], "e", group="g")
    buffer.add_game([], "e", group="g")
    assert buffer.size() == 4
    one = learner(folder, tmp_path, buffer, algorithm=GRPO())
    assert one.update_once(4)["advantage_mean"] == 0.0


def test_old_buffer_state_is_read(tmp_path: Path):
    """States of versions that counted trajectories, not games, of seats by themselves."""
    buffer = StepBuffer(100, buffer_strategy="groups", group_size=3)
    for _ in range(2):
        buffer.add_game([make_game(1, group="group-1/0")], "e")
    state = buffer.state_dict()
    del state["store"]["games"], state["received"], state["cleared"], state["transformed"]
    again = StepBuffer(100, buffer_strategy="groups", group_size=3)
    again.load_state_dict(state)
    assert (again.size(), again.stats()["waiting"]) == (0, 8)
    again.add_game([make_game(2, group="group-1/0")], "e")
    assert again.size() == 12


def test_train_prints_lost_steps():
    steps = {"sampled": 100, "trained": 90, "left": 2, "evicted": 5, "too_long": 3, "failed": 0}
    assert _describe_losses({"steps": steps}) == (
        "8 of 100 steps were not trained on (5 evicted, 3 too long)"
    )
    assert _describe_losses({"steps": {"sampled": 9, "trained": 9, "left": 0}}) == ""
