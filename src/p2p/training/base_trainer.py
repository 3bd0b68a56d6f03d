"""What both training backends share: schedule, reports, evaluations and saved states.

A backend derives from BaseTrainer and adds the rollout and the update: `learn`, `policy`, `state`.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from p2p.config import TrainConfig
from p2p.contracts import (
    Alive,
    EvalReady,
    EvalResult,
    Finished,
    ScalarsReady,
    Started,
    StateSaved,
    TrainScalars,
    WorkerMessage,
)
from p2p.training.checkpoints import ResumeError, adopt_state, load_state, save_state
from p2p.training.engines.table import is_engine
from p2p.training.envs.batched_env import BatchedEnv
from p2p.training.evaluation import EpisodeLog, evaluate, evaluation_seed
from p2p.training.policies.policy import Policy
from p2p.training.reward_loader import parse_source
from p2p.training.reward_runner import RewardRunner, decide_batched
from p2p.training.specs.quantities import QUANTITIES
from p2p.training.trajectory import RecordedEpisode

Phase = Literal["setup", "compile", "rollout", "update", "eval"]


@dataclass(frozen=True, slots=True)
class TrainContext:
    """One training run, as seen from inside the sandbox."""

    config: TrainConfig
    reward_code: str
    folder: Path
    """The only place to write; a resume state in it is continued."""
    send: Callable[[WorkerMessage], None]
    until: int | None = None
    """The step to stop at, before the configuration's last; the state is saved there."""


ADVICE = "a lower learning_rate or max_grad_norm, or normalize_reward, may help"


class TrainingDivergedError(RuntimeError):
    """The parameters are no longer numbers."""


def finite_metrics(metrics: Mapping[str, Any], step: int) -> dict[str, float]:
    """The metrics of an update that exist; raises TrainingDivergedError if it went wrong."""
    values = {name: float(value) for name, value in metrics.items()}
    broken = [name for name, value in values.items() if not math.isfinite(value)]
    if broken and broken != ["explained_variance"]:  # undefined where all returns are equal
        raise TrainingDivergedError(
            f"after {step} steps no longer finite: {', '.join(broken)}; {ADVICE}"
        )
    return {name: value for name, value in values.items() if name not in broken}


class Heartbeat:
    """Tells the parent that work continues, a few times a second at most."""

    def __init__(self, send: Callable[[WorkerMessage], None], interval_s: float = 0.5) -> None:
        self.global_step = 0
        self._send = send
        self._interval = interval_s
        self._next = 0.0

    def __call__(self, phase: Phase) -> None:
        """Report, unless that was done a moment ago."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._interval
            self._send(Alive(phase=phase, global_step=self.global_step))

    def phase(self, phase: Phase) -> Callable[[], None]:
        """A callback that reports this phase."""
        return lambda: self(phase)

    @contextmanager
    def during(self, phase: Phase, interval_s: float = 2.0) -> Iterator[None]:
        """Report from a thread, while one long call that cannot report runs: our own only.

        Never around a reward's code: what hangs in there must fall silent.
        """
        over = threading.Event()

        def report() -> None:
            while not over.wait(interval_s):
                self(phase)

        thread = threading.Thread(target=report, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def evaluation_steps(config: TrainConfig) -> list[int]:
    """The steps at or after which the policy is evaluated: i / num_evals of the whole run."""
    count = config.num_evals
    return [-(-i * config.total_timesteps // count) for i in range(1, count + 1)]


def evaluation_due(config: TrainConfig, before: int, after: int) -> bool:
    """Whether a rollout from step `before` to `after` reached an evaluation."""
    return any(before < step <= after for step in evaluation_steps(config))


def checkpoint_due(config: TrainConfig, before: int, after: int) -> bool:
    """Whether the state is to be saved: every checkpoint_interval, and after evaluations."""
    interval = config.checkpoint_interval
    return before // interval != after // interval or evaluation_due(config, before, after)


def make_environment(
    config: TrainConfig,
    num_envs: int,
    code: str,
    backend: Literal["auto", "gym"] = "auto",
    *,
    training: bool = False,
    recorded: bool = False,
) -> BatchedEnv:
    """The configuration's environment, `num_envs` times, for a reward.

    In training it has the horizon of training. Its info has the quantities that the reward reads,
    or all of them where episodes are recorded.
    """
    source = parse_source(code, config.engine)
    quantities = source.strings.intersection(QUANTITIES if config.side_info else ())
    options = replace(
        config.env_options(training=training),
        side_info=recorded or (config.side_info and source.reads_simulator),
        quantities=frozenset(QUANTITIES if recorded else quantities),
    )
    if is_engine(config.engine):
        from p2p.training.engines.engine_env import make_engine_env

        return make_engine_env(options, num_envs)
    from p2p.training.vec_env import make_batched_env

    return make_batched_env(options, num_envs, backend=backend)


def make_reward(config: TrainConfig, code: str, env: BatchedEnv, *, batched: bool) -> RewardRunner:
    """The reward of these environments, with what the configuration lets it see."""
    side_info = env if config.side_info else None
    return RewardRunner(
        code, env.num_envs, batched=batched, engine=config.engine, side_info=side_info
    )


class BaseTrainer:
    """One run inside the sandbox, with its environments, reward, episodes and progress."""

    backend: ClassVar[Literal["fast", "sb3", "rsl_rl"]]
    env_backend: ClassVar[Literal["auto", "gym"]]

    def __init__(self, ctx: TrainContext) -> None:
        self.ctx, self.config = ctx, ctx.config
        config = ctx.config
        self.alive = Heartbeat(ctx.send)
        self.alive("setup")
        with self.alive.during("compile") if is_engine(config.engine) else nullcontext():
            self.env = make_environment(
                config, config.num_envs, ctx.reward_code, self.env_backend, training=True
            )
            if is_engine(config.engine):
                self.env.reset_batch(0)  # kernels are compiled when they are first used
        self.saved = load_state(ctx.folder)
        if self.saved is None:
            batched, self.note = decide_batched(
                ctx.reward_code, self.env, side_info=config.side_info, engine=config.engine
            )
            self.iteration, self.elapsed = 0, 0.0
        else:
            meta = self.saved[1]
            if not _is_state_of(meta, config, ctx.reward_code):
                raise ResumeError("the saved state belongs to another configuration or reward")
            batched, self.note = meta["batched"], meta["note"]
            self.iteration, self.elapsed = meta["iteration"], meta["elapsed"]
        self.alive.global_step = self.step
        self.reward = make_reward(config, ctx.reward_code, self.env, batched=batched)
        self.episodes = EpisodeLog(config.num_envs, config.reward_term_avg_window)
        if self.saved is not None:
            self.episodes.load_state(part("episodes", self.saved[0]), self.saved[1]["episodes"])
        self._evaluation: tuple[BatchedEnv, RewardRunner] | None = None

    @property
    def step(self) -> int:
        return self.iteration * self.config.batch_size

    @property
    def last_iteration(self) -> int:
        """Where this process stops: at the end of the run, or on the way there."""
        until, planned = self.ctx.until, self.config.num_iterations
        return planned if until is None else min(planned, -(-until // self.config.batch_size))

    def later_seed(self) -> int:
        """Where environments start again now: where neither they nor others were."""
        sequence = np.random.SeedSequence([self.config.seed, self.iteration])
        return int(sequence.generate_state(1)[0] >> 1)

    def run(self) -> None:
        """Train to the end and tell the parent. Raises RewardError and others."""
        try:
            self.ctx.send(
                Started(
                    backend=self.backend,
                    start_step=self.step,
                    total_timesteps=self.config.total_timesteps,
                    reward=self.reward.spec,
                    reward_calls="batch" if self.reward.batched else "per_env",
                    note=self.note,
                )
            )
            self.learn()
            self.ctx.send(
                Finished(
                    global_step=self.step,
                    total_episodes=self.episodes.total,
                    final_episodic_return=self.episodes.metrics().get("episodic_return"),
                )
            )
        finally:
            self.env.close()
            if self._evaluation is not None:
                self._evaluation[0].close()

    def finish_iteration(
        self, metrics: Mapping[str, Any], ended: int, rollout_time: float, train_time: float
    ) -> None:
        """A rollout and its update are done: report, evaluate and save as the schedule says."""
        before, spent = self.step, rollout_time + train_time
        self.iteration += 1
        self.elapsed += spent
        self.alive.global_step = self.step
        values = finite_metrics(metrics, self.step) | self.episodes.metrics()
        values |= {
            "episodes_per_rollout": float(ended),
            "sps": self.config.batch_size / spent,
            "elapsed_time": self.elapsed,
            "rollout_time": rollout_time,
            "train_time": train_time,
        }
        if self.reward.ends_episodes and ended:
            values["failed_share"] = self.reward.failures / ended
            self.reward.failures = 0
        scalars = TrainScalars(global_step=self.step, iteration=self.iteration, values=values)
        self.ctx.send(ScalarsReady(scalars=scalars))
        if evaluation_due(self.config, before, self.step):
            began = time.perf_counter()
            self._evaluate(self.policy())
            self.elapsed += time.perf_counter() - began
        stops = self.ctx.until is not None and self.iteration == self.last_iteration
        if stops or checkpoint_due(self.config, before, self.step):
            self._checkpoint()

    def learn(self) -> None:
        """Do the iterations that are left, each closed by `finish_iteration`."""
        raise NotImplementedError

    def policy(self) -> Policy:
        """The policy as it stands."""
        raise NotImplementedError

    def state(self) -> dict[str, NDArray[Any]]:
        """All that the backend needs to continue from here."""
        raise NotImplementedError

    def environment_state(self) -> dict[str, NDArray[Any]] | None:
        """None if environments and reward cannot be continued exactly."""
        if self.reward.stateful:
            return None
        try:
            return self.env.state_dict()
        except NotImplementedError:
            return None

    def _evaluate(self, policy: Policy) -> None:
        """Play the policy, leave it and its episodes in the folder, and tell the parent.

        Environments and rewards are made once, and start alike at every checkpoint.
        """
        config = self.config
        if self._evaluation is None:
            code, batched = self.ctx.reward_code, self.reward.batched
            with self.alive.during("compile") if is_engine(config.engine) else nullcontext():
                env = make_environment(config, config.eval_envs, code, recorded=True)
            self._evaluation = env, make_reward(config, code, env, batched=batched)
        evaluation = evaluate(
            *self._evaluation,
            policy.act,
            rounds=config.num_eval_rounds,
            seed=evaluation_seed(),
            step=self.step,
            stride=config.trajectory_stride,
            alive=self.alive.phase("eval"),
        )
        policy_file = f"policy_{self.step}.safetensors"
        policy.save(self.ctx.folder / policy_file)
        send_evaluation(self.ctx, policy_file, *evaluation)

    def _checkpoint(self) -> None:
        arrays = self.state()
        episodes, episode_meta = self.episodes.state()
        meta = {
            **_identity(self.config, self.ctx.reward_code),
            "batched": self.reward.batched,
            "note": self.note,
            "iteration": self.iteration,
            "elapsed": self.elapsed,
            "episodes": episode_meta,
        }
        file = save_state(
            self.ctx.folder, self.step, {**arrays, **prefixed("episodes", episodes)}, meta
        )
        self.ctx.send(StateSaved(global_step=self.step, file=file))


def send_evaluation(
    ctx: TrainContext,
    policy_file: str,
    result: EvalResult,
    trajectories: Mapping[str, RecordedEpisode],
) -> None:
    """Leave the episodes in the folder and tell the parent."""
    files = {label: f"trajectory_{result.global_step}_{label}.npz" for label in trajectories}
    for label, trajectory in trajectories.items():
        trajectory.save(ctx.folder / files[label])
    ctx.send(EvalReady(result=result, policy_file=policy_file, trajectory_files=files))


def _identity(config: TrainConfig, reward_code: str) -> dict[str, Any]:
    """What a state says of its run, for `_is_state_of`."""
    digest = hashlib.sha256(reward_code.encode()).hexdigest()
    return {"config": config.model_dump(mode="json"), "reward": digest}


def _is_state_of(meta: Mapping[str, Any], config: TrainConfig, reward_code: str) -> bool:
    """Whether this run gives the results of the one that a state is of, and may continue it.

    A field that the state does not know has its default. Older states have a fingerprint of all
    fields instead: they are known by the config.json beside them alone.
    """
    if "fingerprint" in meta:
        return True
    try:
        known = TrainConfig.model_validate(meta.get("config"))
    except ValidationError:
        return False
    # How many threads step makes no difference, so a resumed run may have other cores.
    differs = set(config.differences(known)) - {"num_threads"}
    return not differs and meta.get("reward") == _identity(config, reward_code)["reward"]


def state_for(
    config: TrainConfig, reward_code: str, source: Path, target: Path, *, same_reward: bool = False
) -> None:
    """Let another run continue where this one stands; raises ResumeError.

    Args:
        config: Of the other run; but for its name and its length, the same.
        reward_code: Its reward, with the same terms.
        source: The folder with the state.
        target: The other run's.
        same_reward: Whether this run has that reward, too.
    """
    saved = load_state(source)
    if saved is None:
        raise ResumeError(f"{source} has no state to continue from")
    arrays, meta = saved
    if not same_reward:  # past steps to learn from have the rewards of the one that took them
        arrays = {name: array for name, array in arrays.items() if not name.startswith("replay/")}
    meta = {name: value for name, value in meta.items() if name != "fingerprint"}
    meta |= _identity(config, reward_code)
    iteration = meta.get("iteration")
    if not isinstance(iteration, int) or not 0 <= iteration < config.num_iterations:
        raise ResumeError(f"{source.name} holds a state with which nothing is left to be trained")
    step = iteration * config.batch_size
    adopt_state(target, save_state(target, step, arrays, meta))


def prefixed(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Put a part's arrays under a name of their own."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def part(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays that `prefixed` put there."""
    start = f"{prefix}/"
    return {name[len(start) :]: a for name, a in arrays.items() if name.startswith(start)}
