"""Evaluating checkpoints from inside a trainer: one way for every backend."""

from __future__ import annotations

from p2p.contracts import EvalReady
from p2p.training.assembly import make_environment, make_reward
from p2p.training.context import Heartbeat, TrainContext
from p2p.training.evaluation import evaluate, evaluation_seed
from p2p.training.policies.policy import Policy


class Evaluator:
    """Environments and rewards of its own, made once, on the same starts at every checkpoint."""

    def __init__(self, ctx: TrainContext, alive: Heartbeat, *, batched: bool) -> None:
        self.ctx = ctx
        self.alive = alive
        self.env = make_environment(ctx.config, ctx.config.eval_envs)
        self.reward = make_reward(ctx, ctx.config.eval_envs, batched=batched)

    def run(self, policy: Policy, step: int) -> None:
        """Play the policy, leave it and its episodes in the folder, and tell the parent."""
        config, folder = self.ctx.config, self.ctx.folder
        result, trajectories = evaluate(
            self.env,
            self.reward,
            policy.act,
            rounds=config.num_eval_rounds,
            seed=evaluation_seed(),
            step=step,
            stride=config.trajectory_stride,
            side_info=config.side_info,
            alive=self.alive.phase("eval"),
        )
        policy_file = f"policy_{step}.safetensors"
        policy.save(folder / policy_file)
        files = {label: f"trajectory_{step}_{label}.npz" for label in trajectories}
        for label, trajectory in trajectories.items():
            trajectory.save(folder / files[label])
        self.ctx.send(EvalReady(result=result, policy_file=policy_file, trajectory_files=files))

    def close(self) -> None:
        """Free the environments."""
        self.env.close()
