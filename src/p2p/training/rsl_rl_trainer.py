"""rsl_rl's PPO as a learner, over the environments of a GPU simulator.

Observations, actions and the network stay on the engine's device. The actor sees the group `actor`,
the critic `critic`, as the engine's own configuration has it; the reward sees what the actor does.

A killed run continues with its weights, optimiser, statistics and random states, in new episodes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from p2p.training.checkpoints import Arrays, add_prefix, part
from p2p.training.engines.engine_env import EngineEnv, Groups, Reached
from p2p.training.policies.network import explained_variance, gaussian_shift
from p2p.training.policies.policy import Policy
from p2p.training.reward_function import RewardError
from p2p.training.reward_runner import TOTAL, Transition
from p2p.training.reward_tensors import TensorTransition, decide_tensors
from p2p.training.torch_states import (
    load_adam,
    load_generators,
    load_weights,
    save_adam,
    save_generators,
    save_weights,
    to_array,
    to_tensor,
)
from p2p.training.training_loop import ADVICE, Metrics, TrainingDivergedError, TrainingLoop

if TYPE_CHECKING:
    from p2p.config import TrainConfig

NEVER_CLIPPED = 1e6
"""rsl_rl does not clip normalised observations."""
GROUPS = {"actor": ["actor"], "critic": ["critic"]}


class RslRlLearner:
    """rsl_rl's PPO; actor, critic and storage stay on the engine's device."""

    backend: Literal["rsl_rl"] = "rsl_rl"

    def __init__(self, loop: TrainingLoop) -> None:
        assert isinstance(loop.env, EngineEnv)
        self.loop, self.config, self.env, self.reward = loop, loop.config, loop.env, loop.reward
        torch.set_num_threads(loop.config.num_threads or len(os.sched_getaffinity(0)))
        torch.set_float32_matmul_precision("high")  # TF32 on a GPU, as the engines' own training
        self.on_tensors, why = decide_tensors(
            loop.ctx.reward_code, self.env, self.reward, engine=self.config.engine
        )
        copies = f"the reward is called through NumPy copies: {why}" if why else ""
        # A resumed run has them in its note already.
        notes = dict.fromkeys([f"on {self.env.device}", *loop.note.split("; "), copies])
        loop.note = "; ".join(filter(None, notes))
        self.groups = self.env.reset_tensors(loop.restart_seed())
        self.algorithm = make_algorithm(self.config, self.env, self._tensors(self.groups))
        self.open_sums: torch.Tensor | None = None
        """Of episodes under way, (1 + terms + 1, N): return, terms, length."""
        self.scale = RewardScale(self.config.num_envs, self.config.gamma, self.env.device)
        self.start = torch.ones(self.config.num_envs, dtype=torch.bool, device=self.env.device)
        if loop.saved is not None:
            self._load(part("learner", loop.saved[0]))
            loop.episodes.restart()  # environments are not saved, new episodes begin

    @torch.no_grad()
    def act(self, steps: int) -> tuple[int, int]:
        """Fill the storage."""
        totals: list[torch.Tensor] = []
        terms: list[dict[str, torch.Tensor]] = []
        dones: list[torch.Tensor] = []
        for _ in range(steps):
            observations = self._tensors(self.groups)
            actions = self.algorithm.act(observations)
            if self.on_tensors is None:
                reached = self.env.step_tensors(actions)
                total, parts, failed = self._through_numpy(self.groups, actions, reached)
                terminated = reached.terminated | failed
                done = terminated | reached.truncated
                groups = self.env.restart_tensors(done)
            else:
                reached, info, groups = self.env.step_and_restart(actions)
                before, after = self.groups["actor"], reached.groups["actor"]
                total, parts, failed = self.on_tensors(
                    TensorTransition(before, actions, after, info, self.start)
                )
                ended = reached.terminated | reached.truncated
                terminated, done = reached.terminated | failed, ended | failed
                if self.reward.ends_episodes:
                    groups = self.env.restart_tensors(failed & ~ended)
            self.groups, self.start = groups, done
            rewards = total
            if self.config.normalize_reward:
                rewards = self.scale(rewards, done).clamp(
                    -self.config.reward_clip, self.config.reward_clip
                )
            self.algorithm.process_env_step(
                self._tensors(self.groups),
                rewards,
                done.long(),
                {"time_outs": reached.truncated & ~terminated},
            )
            totals.append(total)
            terms.append(parts)
            dones.append(done)
            self.loop.alive("rollout")
        self.algorithm.compute_returns(self._tensors(self.groups))
        names = tuple(terms[0])
        rows = [
            torch.stack([t, *(p[n] for n in names)]) for t, p in zip(totals, terms, strict=True)
        ]
        values = torch.stack(rows)
        self._check(values, names)
        return steps, self._count_episodes(values, torch.stack(dones), names)

    def _check(self, values: torch.Tensor, names: tuple[str, ...]) -> None:
        """Raise RewardError if a total or a term of the rollout, (T, 1 + terms, N), is no number.

        One look at a whole rollout: to look at every step would have the device wait for it.
        """
        finite = torch.isfinite(values)
        if bool(finite.all()):
            return
        step, term, row = (int(i) for i in (~finite).nonzero()[0])
        value, name = float(values[step, term, row]), (TOTAL, *names)[term]
        at = self.loop.iteration * self.config.num_steps + step
        raise RewardError(
            f"{name} is {value} (step {at}, environment {row})",
            term=name, step=at, row=row, value=value,
        )  # fmt: skip

    def _count_episodes(
        self, values: torch.Tensor, dones: torch.Tensor, names: tuple[str, ...]
    ) -> int:
        """Sum (T, 1 + terms, N) over episodes, on the device; returns how many ended."""
        steps, width, count = values.shape
        if self.open_sums is None:
            self.open_sums = torch.zeros((width + 1, count), device=values.device)
        reached = []
        for t in range(steps):
            self.open_sums[:-1] += values[t]
            self.open_sums[-1] += 1
            reached.append(self.open_sums.clone())
            self.open_sums *= ~dones[t]
        ended = torch.stack(reached).transpose(1, 2)[dones]
        episodes = self.loop.episodes
        return episodes.extend(names, _numpy(ended[-episodes.window :]), len(ended))

    def _through_numpy(
        self, before: Groups, actions: torch.Tensor, reached: Reached
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor]:
        """Totals, terms, and where the reward ends the episode."""
        failed = torch.zeros_like(reached.terminated)
        transition = Transition(
            _numpy(before["actor"]),
            actions.cpu().numpy(),
            _numpy(reached.groups["actor"]),
            self.env.batch_info(),
            self.start.cpu().numpy(),
        )
        sums, parts = self.reward(transition)
        if self.reward.ends_episodes:
            failed = torch.as_tensor(
                np.array(self.reward.failed(transition)), device=self.env.device
            )
        device, single = self.env.device, torch.float32
        terms = {name: torch.as_tensor(v, dtype=single, device=device) for name, v in parts.items()}
        return torch.as_tensor(sums, dtype=single, device=device), terms, failed

    def update(self) -> list[Metrics]:
        algorithm, storage = self.algorithm, self.algorithm.storage
        seen = storage.observations.flatten(0, 1)
        old = self._gaussian(seen)
        explained = explained_variance(storage.values.flatten(), storage.returns.flatten(), torch)
        self.loop.alive("update")
        losses = algorithm.update()
        new = self._gaussian(seen)
        shift = {name: float(value) for name, value in gaussian_shift(*old, *new, torch).items()}
        if not all(math.isfinite(value) for value in (*losses.values(), *shift.values())):
            raise TrainingDivergedError(
                f"after {self.loop.step} steps the policy is no longer finite; {ADVICE}"
            )
        metrics = {
            **shift,
            "policy_loss": losses["surrogate"],
            "value_loss": losses["value"],
            "entropy": losses["entropy"],
            "approx_kl": shift["kl_mean_term"] + shift["kl_std_term"],
            "explained_variance": float(explained),
            "policy_std": float(torch.exp(new[1]).mean()),
            "learning_rate": float(algorithm.learning_rate),
        }
        return [metrics]

    @torch.no_grad()
    def _gaussian(self, observations: TensorDict) -> tuple[torch.Tensor, torch.Tensor]:
        """Means (B, A) and logarithms of the standard deviations (A,) of the policy."""
        actor = self.algorithm.actor
        return actor(observations), actor.distribution.log_std_param.detach().clone()

    def _tensors(self, groups: Groups) -> TensorDict:
        return TensorDict(dict(groups), batch_size=[self.config.num_envs])

    def restart(self, seed: int | None = None) -> None:
        self.groups = self.env.reset_tensors(seed)
        self.start = torch.ones_like(self.start)
        self.scale.returns.zero_()
        self.open_sums = None

    def policy(self) -> Policy:
        actor = self.algorithm.actor
        linear = [layer for layer in actor.mlp if isinstance(layer, torch.nn.Linear)]
        names = [f"mlp_extractor.policy_net.{2 * i}" for i in range(len(linear) - 1)]
        tensors = {"log_std": to_array(actor.distribution.log_std_param)}
        for name, layer in zip([*names, "action_net"], linear, strict=True):
            tensors[f"{name}.weight"] = to_array(layer.weight)
            tensors[f"{name}.bias"] = to_array(layer.bias)
        statistics = None
        if self.config.normalize_obs:
            normalizer = actor.obs_normalizer
            mean, std = (to_array(x).astype(np.float64) for x in (normalizer.mean, normalizer.std))
            statistics = SimpleNamespace(mean=mean, var=(std + normalizer.eps) ** 2)
        unbounded = np.full(len(tensors["log_std"]), np.inf, np.float32)
        clip = {"obs_clip": NEVER_CLIPPED, "obs_epsilon": 0.0}
        return Policy.from_training(
            self.config, tensors, statistics, (-unbounded, unbounded), **clip
        )

    def state(self) -> Arrays:
        algorithm = self.algorithm
        parts: Mapping[str, Arrays] = {
            "actor": save_weights(algorithm.actor),
            "critic": save_weights(algorithm.critic),
            "adam": save_adam(algorithm.optimizer),
            "random": save_generators(),
        }
        arrays = {f"{name}/{k}": array for name, each in parts.items() for k, array in each.items()}
        arrays |= {
            "scale": self.scale.state(),
            "learning_rate": np.array([algorithm.learning_rate]),
        }
        return add_prefix("learner", arrays)

    def _load(self, arrays: Arrays) -> None:
        algorithm = self.algorithm
        load_weights(algorithm.actor, part("actor", arrays))
        load_weights(algorithm.critic, part("critic", arrays))
        load_adam(algorithm.optimizer, part("adam", arrays))
        algorithm.learning_rate = float(arrays["learning_rate"][0])
        for group in algorithm.optimizer.param_groups:
            group["lr"] = algorithm.learning_rate
        self.scale.load(arrays["scale"])
        earlier = {"torch": arrays["rng"]} if "rng" in arrays else {}  # all that was saved once
        load_generators(earlier | part("random", arrays))


def make_algorithm(config: TrainConfig, env: EngineEnv, observations: TensorDict) -> PPO:
    """The algorithm, of an actor, a critic and a storage for these observations."""
    device, actions = env.device, env.single_action_space.shape[0]
    network: dict[str, Any] = {
        "hidden_dims": list(config.net_arch),
        "activation": config.activation,
        "obs_normalization": config.normalize_obs,
    }
    spread = {
        "class_name": "GaussianDistribution",
        "init_std": math.exp(config.log_std_init),
        "std_type": "log",
    }
    actor = MLPModel(observations, GROUPS, "actor", actions, **network, distribution_cfg=spread)
    critic = MLPModel(observations, GROUPS, "critic", 1, **network)
    storage = RolloutStorage(
        "rl", config.num_envs, config.num_steps, observations, [actions], device
    )
    algorithm = PPO(
        actor,
        critic,
        storage,
        num_learning_epochs=config.update_epochs,
        num_mini_batches=config.num_minibatches,
        clip_param=config.clip_coef,
        gamma=config.gamma,
        lam=config.gae_lambda,
        value_loss_coef=config.vf_coef,
        entropy_coef=config.ent_coef,
        learning_rate=config.learning_rate,
        max_grad_norm=config.max_grad_norm,
        use_clipped_value_loss=config.clip_vloss,
        schedule="fixed" if config.target_kl is None else "adaptive",
        desired_kl=config.target_kl or 0.01,
        device=device,
    )
    algorithm.train_mode()
    return algorithm


class RewardScale:
    """Rewards in units of the standard deviation of the discounted return."""

    def __init__(self, num_envs: int, gamma: float, device: str) -> None:
        self.returns = torch.zeros(num_envs, device=device)
        self.moments = torch.tensor([0.0, 1.0, 1e-4], dtype=torch.float64, device=device)
        """Mean, variance and count."""
        self._gamma = gamma

    def __call__(self, rewards: torch.Tensor, done: torch.Tensor) -> torch.Tensor:
        self.returns = self.returns * self._gamma + rewards
        mean, variance, count = self.moments
        added = len(rewards)
        delta, total = self.returns.mean() - mean, count + added
        spread = variance * count + self.returns.var(unbiased=False) * added
        spread = spread + delta**2 * count * added / total
        self.moments = torch.stack([mean + delta * added / total, spread / total, total])
        self.returns = torch.where(done, 0.0, self.returns)
        return (rewards / torch.sqrt(self.moments[1] + 1e-8)).float()

    def state(self) -> NDArray[np.float64]:
        return to_array(self.moments)

    def load(self, moments: NDArray[Any]) -> None:
        self.moments = to_tensor(moments).to(self.moments.device)


def _numpy(tensor: torch.Tensor) -> NDArray[np.float64]:
    return tensor.cpu().numpy().astype(np.float64)
