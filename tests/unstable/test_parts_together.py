"""Buffer, pool, tracker and games as one small run without a model, also over an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import unstable.reward_transformations as retra
from unstable.buffer import StepBuffer
from unstable.core import Trajectory
from unstable.games.players import RandomLegal
from unstable.games.runner import GameRunner
from unstable.model_pool import ModelPool
from unstable.trackers import Tracker

ENVS = ("TicTacToe-v0-train", "KuhnPoker-v0-train", "Nim-v0-train")


class Run:
    """Plays game after game; every sixth a batch is drawn and a checkpoint appears."""

    def __init__(self, folder: Path) -> None:
        self.tracker = Tracker("run", run_dir=folder)
        self.pool = ModelPool("match-quality", 3, self.tracker, seed=1)
        self.buffer = StepBuffer(
            64, self.tracker, retra.RoleAdvantageByOpponentFormatter(),
            retra.ComposeStepRewardTransforms([retra.BlameInvalidMove(), retra.DiscountToEnd(0.7)]),
            retra.NormalizeRewardsByEnv(z_score=True), seed=2,
        )  # fmt: skip
        self.batches: list[Any] = []

    def begin(self) -> None:
        self.pool.add_checkpoint(None, 0)
        self.pool.add_fixed("random-legal")

    def play(self, number: int) -> None:
        env_id, me = ENVS[number % 3], number % 2
        opponent = self.pool.sample()
        game = GameRunner(env_id, 2, seed=number)
        players = [RandomLegal(number * 2 + seat) for seat in range(2)]
        seen = Trajectory(opponent=opponent.split("-")[0])
        while not game.done:
            turn = game.observe()
            action = players[turn.seat].act(game)
            if turn.seat == me:
                seen.pid.append(me)
                seen.obs.append(turn.observation)
                seen.actions.append(action)
                seen.format_feedbacks.append({"correct_answer_format": True})
            game.step(action)
        seen.final_rewards, seen.num_turns = game.rewards, game.turns
        self.buffer.add_trajectory(seen, me, env_id)
        self.tracker.add_trajectory(seen, me, env_id)
        uid = self.pool.current_uid() or ""
        self.pool.push_game_outcome(uid, opponent, game.rewards[me], game.action_seq(), env_id)
        if number % 6 == 5:
            self.batches.append(self.buffer.get_batch(16))
            self.pool.add_checkpoint(f"adapters/{number}", number)
            self.tracker.log_learner({"step": number, "loss": 0.0})

    def state(self) -> dict[str, Any]:
        parts = {"pool": self.pool, "buffer": self.buffer, "tracker": self.tracker}
        return json.loads(json.dumps({name: part.state_dict() for name, part in parts.items()}))

    def load(self, state: dict[str, Any]) -> None:
        self.pool.load_state_dict(state["pool"])
        self.buffer.load_state_dict(state["buffer"])
        self.tracker.load_state_dict(state["tracker"])


def test_an_interrupted_run_continues_bit_for_bit(tmp_path):
    whole = Run(tmp_path / "whole")
    whole.begin()
    for number in range(60):
        whole.play(number)

    first = Run(tmp_path / "first")
    first.begin()
    for number in range(27):
        first.play(number)
    second = Run(tmp_path / "second")
    second.load(first.state())
    for number in range(27, 60):
        second.play(number)

    assert [*first.batches, *second.batches] == whole.batches
    assert second.state() == whole.state()
    assert len(whole.batches) == 10


def test_a_run_leaves_its_data_and_metrics(tmp_path):
    run = Run(tmp_path / "run")
    run.begin()
    for number in range(12):
        run.play(number)
    run.buffer.close()
    run.tracker.close()
    names = {str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*.*")}
    assert {
        "metrics.jsonl", "interface.json",
        "training_data/train_data_step_0.csv", "training_data/train_data_step_1.csv",
    } <= names  # fmt: skip
    info = json.loads((tmp_path / "run" / "interface.json").read_text())
    assert info["step"] == 11
    assert info["TS"].keys() == {"ckpt-0", "ckpt-5", "ckpt-11", "fixed-random-legal"}
    assert sum(count for *_, count in info["match_counts"]) <= 12
