"""Algorithms of your own: `python examples/custom_algorithm.py MODEL`, a folder or a name.

Steps come from games that random players play, so nothing but a small model is needed
(`unstable tiny DIR` makes one). In a run, `algorithm=` of the learner takes either class.
"""

import sys
import tempfile

import torch
from torch.nn.utils.rnn import pad_sequence

from unstable.algorithms import Reinforce
from unstable.algorithms.policy_gradient import to_sample
from unstable.buffer import StepBuffer
from unstable.core import BaseAlgo, Trajectory
from unstable.games import GameRunner
from unstable.games.players import RandomLegal
from unstable.learners.standard_learner import StandardLearner

ENV = "TicTacToe-v0-train"


class BestHalf(Reinforce):
    """A rule of its own for what a step is worth; all else is as it was."""

    def advantages(self, samples):
        rewards = [sample.step.reward for sample in samples]
        middle = sorted(rewards)[len(rewards) // 2]
        return [float(reward >= middle) for reward in rewards]


class ImitateWinners(BaseAlgo):
    """From scratch: the likelihood of what winners did."""

    def prepare_batch(self, steps):
        winners = [step for step in steps if step.reward > 0]
        samples = [to_sample(step, self.tokenizer, self.max_train_len) for step in winners]
        tokens = [torch.tensor(sample.tokens) for sample in samples]
        answers = [torch.arange(len(s.tokens)) >= s.prompt_length for s in samples]
        return (
            pad_sequence(tokens, batch_first=True).to(self.device),
            pad_sequence(answers, batch_first=True).to(self.device),
            len(steps),
        ) if samples else None  # fmt: skip

    def update(self, steps, scaling=1.0):
        batch = self.prepare_batch(steps)
        if batch is None:  # nobody won
            return {"loss": 0.0}
        tokens, answers, count = batch
        # Shorter ones are filled up at the end, where nothing before can see it: no mask is needed.
        logits = self.model(input_ids=tokens).logits[:, :-1].float()
        logp = torch.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None])[..., 0]
        loss = -(logp * answers[:, 1:]).sum() / count
        (loss / scaling).backward()
        return {"loss": loss.item(), "winners": float(len(tokens))}


def play(buffer, games):
    """Random games, from the first player's seat; the answers are text."""
    for seed in range(games):
        game = GameRunner(ENV, 2, seed=seed)
        player = RandomLegal(seed)
        seen = Trajectory()
        while not game.done:
            turn = game.observe()
            action = player.act(game)
            if turn.seat == 0:
                seen.pid.append(0)
                seen.obs.append(turn.observation[-120:])  # the board and the moves there are
                seen.actions.append(action)
                seen.format_feedbacks.append({"correct_answer_format": True})
            game.step(action)
        seen.final_rewards, seen.num_turns = game.rewards, game.turns
        buffer.add_trajectory(seen, 0, ENV)


def main(model, updates=4):
    for algorithm in (BestHalf(), ImitateWinners()):
        buffer = StepBuffer(10_000)
        play(buffer, games=20 * updates)
        with tempfile.TemporaryDirectory() as folder:
            learner = StandardLearner(
                model, buffer, None, algorithm, batch_size=32, mini_batch_size=8,
                max_generation_len=8, learning_rate=2e-3, ckpt_root=folder, save_every=updates,
            )  # fmt: skip
            for _ in range(updates):
                info = learner.update_once()
                print(f"{type(algorithm).__name__}: update {info['step']:.0f},"
                      f" loss {info['loss']:.3f}")  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
