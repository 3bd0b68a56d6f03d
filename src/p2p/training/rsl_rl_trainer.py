"""The backend of GPU simulators: rsl_rl's PPO over an engine's environments.

Observations, actions and the network stay on the engine's device. The actor sees the group `actor`,
the critic `critic`, as the engine's own configuration has it; the reward sees what the actor does.

A killed run continues with its weights, optimiser, statistics and random states, in new episodes.
"""

from __future__ import annotations

import math
import os
import random
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from p2p.training.base_trainer import (
    ADVICE,
    BaseTrainer,
    TrainContext,
    TrainingDivergedError,
    part,
    prefixed,
)
from p2p.training.engines.engine_env import EngineEnv, Groups, Reached
from p2p.training.policies.network import NetworkShape, explained_variance, gaussian_shift
from p2p.training.policies.policy import Policy
from p2p.training.reward_function import RewardError
from p2p.training.reward_runner import TOTAL, Transition
from p2p.training.reward_tensors import TensorTransition, decide_tensors

Arrays = dict[str, NDArray[Any]]
NEVER_CLIPPED = 1e6
"""rsl_rl does not clip normalised observations."""
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
GROUPS = {"actor": ["actor"], "critic": ["critic"]}


def train(ctx: TrainContext) -> None:
    """Train to the end, continuing from a state in ctx.folder."""
    torch.set_num_threads(ctx.config.num_threads or len(os.sched_getaffinity(0)))
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU, as the engines' own training
    RslRlTrainer(ctx).run()


class RslRlTrainer(BaseTrainer):
    backend = "rsl_rl"
    env_backend = "auto"
    env: EngineEnv

    def __init__(self, ctx: TrainContext) -> None:
        super().__init__(ctx)
        self.on_tensors, why = decide_tensors(
            ctx.reward_code, self.env, self.reward, engine=self.config.engine
        )
        copies = f"the reward is called through NumPy copies: {why}" if why else ""
        # A resumed run has them in its note already.
        notes = dict.fromkeys([f"on {self.env.device}", *self.note.split("; "), copies])
        self.note = "; ".join(filter(None, notes))
        seed = self.later_seed() if self.iteration else self.config.seed
        self.groups = self.env.reset_tensors(seed)
        self.algorithm = self._make_algorithm()
        self.open_sums: torch.Tensor | None = None
        """Of episodes under way, (1 + terms + 1, N): return, terms, length."""
        self.scale = RewardScale(self.config.num_envs, self.config.gamma, self.env.device)
        self.start = torch.ones(self.config.num_envs, dtype=torch.bool, device=self.env.device)
        if self.saved is not None:
            self._load(part("learner", self.saved[0]))
            self.episodes.restart()  # environments are not saved, new episodes begin

    def _make_algorithm(self) -> PPO:
        config, device = self.config, self.env.device
        observations = self._tensors(self.groups)
        actions = self.env.single_action_space.shape[0]
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

    def learn(self) -> None:
        while self.iteration < self.last_iteration:
            began = time.perf_counter()
            with torch.no_grad():
                ended = self._rollout()
            collected = time.perf_counter()
            metrics = self._update()
            done = time.perf_counter()
            self.finish_iteration(metrics, ended, collected - began, done - collected)

    def _rollout(self) -> int:
        """Fill the storage; returns how many episodes ended."""
        totals: list[torch.Tensor] = []
        terms: list[dict[str, torch.Tensor]] = []
        dones: list[torch.Tensor] = []
        for _ in range(self.config.num_steps):
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
            self.alive("rollout")
        self.algorithm.compute_returns(self._tensors(self.groups))
        names = tuple(terms[0])
        rows = [
            torch.stack([t, *(p[n] for n in names)]) for t, p in zip(totals, terms, strict=True)
        ]
        values = torch.stack(rows)
        self._check(values, names)
        return self._count_episodes(values, torch.stack(dones), names)

    def _check(self, values: torch.Tensor, names: tuple[str, ...]) -> None:
        """Raise RewardError if a total or a term of the rollout, (T, 1 + terms, N), is no number.

        One look at a whole rollout: to look at every step would have the device wait for it.
        """
        finite = torch.isfinite(values)
        if bool(finite.all()):
            return
        step, term, row = (int(i) for i in (~finite).nonzero()[0])
        value, name = float(values[step, term, row]), (TOTAL, *names)[term]
        at = self.iteration * self.config.num_steps + step
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
        return self.episodes.extend(names, _numpy(ended[-self.episodes.window :]), len(ended))

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

    def _update(self) -> dict[str, float]:
        algorithm, storage = self.algorithm, self.algorithm.storage
        seen = storage.observations.flatten(0, 1)
        old = self._gaussian(seen)
        explained = explained_variance(storage.values.flatten(), storage.returns.flatten(), torch)
        self.alive("update")
        losses = algorithm.update()
        new = self._gaussian(seen)
        shift = {name: float(value) for name, value in gaussian_shift(*old, *new, torch).items()}
        if not all(math.isfinite(value) for value in (*losses.values(), *shift.values())):
            raise TrainingDivergedError(
                f"after {self.step} steps the policy is no longer finite; {ADVICE}"
            )
        return {
            **shift,
            "policy_loss": losses["surrogate"],
            "value_loss": losses["value"],
            "entropy": losses["entropy"],
            "approx_kl": shift["kl_mean_term"] + shift["kl_std_term"],
            "explained_variance": float(explained),
            "policy_std": float(torch.exp(new[1]).mean()),
            "learning_rate": float(algorithm.learning_rate),
        }

    @torch.no_grad()
    def _gaussian(self, observations: TensorDict) -> tuple[torch.Tensor, torch.Tensor]:
        """Means (B, A) and logarithms of the standard deviations (A,) of the policy."""
        actor = self.algorithm.actor
        return actor(observations), actor.distribution.log_std_param.detach().clone()

    def _tensors(self, groups: Groups) -> TensorDict:
        return TensorDict(dict(groups), batch_size=[self.config.num_envs])

    def policy(self) -> Policy:
        config, actor = self.config, self.algorithm.actor
        obs_dim, action_dim = (
            space.shape[0]
            for space in (self.env.single_observation_space, self.env.single_action_space)
        )
        shape = NetworkShape.from_config(config, obs_dim, action_dim)
        linear = [layer for layer in actor.mlp if isinstance(layer, torch.nn.Linear)]
        tensors = {"log_std": _array(actor.distribution.log_std_param)}
        for name, layer in zip([*shape.hidden("policy_net"), "action_net"], linear, strict=True):
            tensors |= {f"{name}.weight": _array(layer.weight), f"{name}.bias": _array(layer.bias)}
        mean, variance = np.zeros(obs_dim), np.ones(obs_dim)
        if config.normalize_obs:
            normalizer = actor.obs_normalizer
            mean = _array(normalizer.mean).astype(np.float64)
            variance = (_array(normalizer.std).astype(np.float64) + normalizer.eps) ** 2
        unbounded = np.full(action_dim, np.inf, np.float32)
        return Policy(
            shape=shape,
            tensors=tensors,
            obs_mean=mean,
            obs_var=variance,
            action_low=-unbounded,
            action_high=unbounded,
            obs_clip=NEVER_CLIPPED,
            obs_epsilon=0.0,
            normalize_obs=config.normalize_obs,
            env_id=config.env_id,
            observe_time=config.observe_time,
        )

    def _evaluate(self, policy: Policy) -> None:
        # The engine's generators are the process's: evaluation must not rewind those of training.
        states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        super()._evaluate(policy)
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        if self.env.shares_simulation:  # between two rollouts, so that no episode goes on falsely
            self.groups = self.env.reset_tensors()
            self.start = torch.ones_like(self.start)
            self.scale.returns.zero_()
            self.open_sums = None

    def state(self) -> dict[str, NDArray[Any]]:
        algorithm = self.algorithm
        arrays: Arrays = {"rng": torch.get_rng_state().numpy(), "scale": self.scale.state()}
        arrays["learning_rate"] = np.array([algorithm.learning_rate])
        for name in ("actor", "critic"):
            weights = getattr(algorithm, name).state_dict()
            arrays |= {f"{name}/{key}": _array(value) for key, value in weights.items()}
        for index, moments in algorithm.optimizer.state_dict()["state"].items():
            arrays |= {f"adam/{index}/{key}": _array(moments[key]) for key in MOMENTS}
        return prefixed("learner", arrays)

    def _load(self, arrays: Arrays) -> None:
        algorithm = self.algorithm
        for name in ("actor", "critic"):
            weights = {key: _tensor(value) for key, value in part(name, arrays).items()}
            getattr(algorithm, name).load_state_dict(weights)
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in part("adam", arrays).items():
            index, _, name = key.partition("/")
            moments.setdefault(int(index), {})[name] = _tensor(value)
        saved = algorithm.optimizer.state_dict()
        algorithm.optimizer.load_state_dict({**saved, "state": moments})
        algorithm.learning_rate = float(arrays["learning_rate"][0])
        for group in algorithm.optimizer.param_groups:
            group["lr"] = algorithm.learning_rate
        self.scale.load(arrays["scale"])
        torch.set_rng_state(_tensor(arrays["rng"]))


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
        return _array(self.moments)

    def load(self, moments: NDArray[Any]) -> None:
        self.moments = _tensor(moments).to(self.moments.device)


def _numpy(tensor: torch.Tensor) -> NDArray[np.float64]:
    return tensor.cpu().numpy().astype(np.float64)


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    return np.array(tensor.detach().cpu().numpy())


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.array(array))
