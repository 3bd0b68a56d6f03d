"""Training inside the sandbox: one loop, which every learner is a part of.

A learner acts and updates. The loop makes its environments and its reward, steps it to the end, and
owns what all learners have in common: schedule, reports, evaluations and saved states.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from p2p.config import ConfigurationError, TrainConfig
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
from p2p.training.checkpoints import (
    START_POLICY,
    Arrays,
    ResumeError,
    add_prefix,
    identity_of,
    is_state_of,
    load_state,
    part,
    save_state,
)
from p2p.training.engines.table import is_engine
from p2p.training.envs.batched_env import BatchedEnv, StepBatch, row_seeds
from p2p.training.envs.gym_vec_env import GymVecEnv
from p2p.training.evaluation import EpisodeLog, evaluate, evaluation_seed
from p2p.training.policies.policy import Policy, PolicyFileError
from p2p.training.reward_loader import parse_source
from p2p.training.reward_runner import (
    RewardRunner,
    Rewards,
    Transition,
    decide_batched,
    end_failures,
)
from p2p.training.specs.quantities import QUANTITIES
from p2p.training.trajectory import RecordedEpisode

Metrics = Mapping[str, Any]
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


def mean_metrics(updates: list[Metrics], step: int) -> dict[str, float]:
    """Return the means of the metrics over the updates of one report."""
    values = [finite_metrics(metrics, step) for metrics in updates]
    names = values[0] if values else ()
    return {name: float(np.mean([each[name] for each in values])) for name in names}


class Heartbeat:
    """Tells the parent that work continues, a few times a second at most."""

    def __init__(self, send: Callable[[WorkerMessage], None], interval_s: float = 0.5) -> None:
        self.global_step = 0
        self.reward: RewardRunner | None = None
        self._send = send
        self._interval = interval_s
        self._next = 0.0

    def __call__(self, phase: Phase) -> None:
        """Report, unless that was done a moment ago."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._interval
            seconds = self.reward.seconds if self.reward else 0.0
            self._send(Alive(phase=phase, global_step=self.global_step, reward_seconds=seconds))

    def phase(self, phase: Phase) -> Callable[[], None]:
        """A callback that reports this phase."""
        return lambda: self(phase)

    @contextmanager
    def during(self, phase: Phase, interval_s: float = 2.0) -> Iterator[None]:
        """Report from a thread during one long call of our own that cannot report.

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
    """Return whether a rollout from step `before` to `after` reached an evaluation."""
    return any(before < step <= after for step in evaluation_steps(config))


def checkpoint_due(config: TrainConfig, before: int, after: int) -> bool:
    """Return whether the state is to be saved: every checkpoint_interval, and after evaluations."""
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


class Learner(Protocol):
    """An algorithm as the loop drives it. It is made with the loop, and continues from its state.

    `worker.LEARNERS` names them.
    """

    backend: Literal["fast", "sb3", "rsl_rl"]

    def act(self, steps: int) -> tuple[int, int]:
        """Take at most `steps` steps in every environment.

        Returns how many were taken, and how many episodes ended in them.
        """

    def update(self) -> list[Metrics]:
        """Learn from the steps just taken; the metrics of each update that they called for."""

    def restart(self, seed: int | None = None) -> None:
        """Begin new episodes everywhere; without a seed, the generators go on."""

    def policy(self) -> Policy:
        """Return the current policy."""

    def state(self) -> Arrays:
        """Return all that is needed to continue from here."""


class TrainingLoop:
    """One run inside the sandbox, with its environments, reward, episodes and progress."""

    def __init__(
        self,
        ctx: TrainContext,
        make_learner: Callable[[TrainingLoop], Learner],
        env_backend: Literal["auto", "gym"] = "auto",
    ) -> None:
        self.ctx, self.config = ctx, ctx.config
        self.alive = Heartbeat(ctx.send)
        self.alive("setup")
        with ExitStack() as resources:
            self.env = self._make_environment(ctx.config.num_envs, env_backend, training=True)
            resources.callback(self.env.close)
            if is_engine(self.config.engine):
                with self.alive.during("compile"):
                    self.env.reset_batch(0)  # kernels are compiled when they are first used
            self.saved = load_state(ctx.folder)
            batched = self._begin() if self.saved is None else self._resume(self.saved)
            self.alive.global_step = self.step
            self.reward = make_reward(self.config, ctx.reward_code, self.env, batched=batched)
            self.alive.reward = self.reward
            self.episodes = EpisodeLog(self.config.num_envs, self.config.reward_term_avg_window)
            if self.saved is not None:
                arrays, meta = self.saved
                self.episodes.load_state(part("episodes", arrays), meta["episodes"])
            self._evaluation: tuple[BatchedEnv, RewardRunner] | None = None
            self.learner = make_learner(self)
            self.saved = None  # past steps to learn from take much memory
            self._resources = resources.pop_all()

    def _begin(self) -> bool:
        self.iteration, self.elapsed = 0, 0.0
        self._seeding: str | None = SEEDING
        batched, self.note = decide_batched(
            self.ctx.reward_code,
            self.env,
            side_info=self.config.side_info,
            engine=self.config.engine,
        )
        return batched

    def _resume(self, saved: tuple[Arrays, dict[str, Any]]) -> bool:
        meta = saved[1]
        if not is_state_of(meta, self.config, self.ctx.reward_code):
            raise ResumeError("the saved state belongs to another configuration or reward")
        self.iteration, self.elapsed, self.note = meta["iteration"], meta["elapsed"], meta["note"]
        self._seeding = meta.get("seeding")
        return bool(meta["batched"])

    def _make_environment(
        self, num_envs: int, backend: Literal["auto", "gym"] = "auto", **options: bool
    ) -> BatchedEnv:
        with self.alive.during("compile"):  # making an environment may take long
            env = make_environment(self.config, num_envs, self.ctx.reward_code, backend, **options)
        if isinstance(env, GymVecEnv):
            env.after_row = self.alive.phase("rollout" if options.get("training") else "eval")
        return env

    @property
    def step(self) -> int:
        return self.iteration * self.config.batch_size

    @property
    def last_iteration(self) -> int:
        """Where this process stops: at the end of the run, or on the way there."""
        until, planned = self.ctx.until, self.config.num_iterations
        return planned if until is None else min(planned, -(-until // self.config.batch_size))

    def restart_seed(self) -> int:
        """Return a seed for restarted environments that no earlier start had."""
        if not self.iteration:
            return self.config.seed
        sequence = np.random.SeedSequence([self.config.seed, self.iteration])
        return int(sequence.generate_state(1)[0] >> 1)

    def run(self) -> None:
        """Train to the end and tell the parent. Raises RewardError and others."""
        with self._resources:
            self.ctx.send(
                Started(
                    backend=self.learner.backend,
                    start_step=self.step,
                    total_timesteps=self.config.total_timesteps,
                    reward=self.reward.spec,
                    reward_calls="batch" if self.reward.batched else "per_env",
                    note=self.note,
                )
            )
            while self.iteration < self.last_iteration:
                self.iterate()
            self.ctx.send(
                Finished(
                    global_step=self.step,
                    total_episodes=self.episodes.total,
                    final_episodic_return=self.episodes.metrics().get("episodic_return"),
                )
            )

    def iterate(self) -> None:
        """Take the steps of one report and learn from them; report, evaluate and save as due."""
        rollout_time = train_time = 0.0
        taken = ended = 0
        updates: list[Metrics] = []
        while taken < self.config.num_steps:
            began = time.perf_counter()
            steps, episodes = self.learner.act(self.config.num_steps - taken)
            acted = time.perf_counter()
            updates += self.learner.update()
            rollout_time += acted - began
            train_time += time.perf_counter() - acted
            taken += steps
            ended += episodes
        self.iteration += 1
        self.elapsed += rollout_time + train_time
        self.alive.global_step = self.step
        values = {"learning_rate": self.config.learning_rate, **mean_metrics(updates, self.step)}
        values |= self.episodes.metrics()
        values |= {
            "episodes_per_rollout": float(ended),
            "sps": self.config.batch_size / (rollout_time + train_time),
            "elapsed_time": self.elapsed,
            "rollout_time": rollout_time,
            "train_time": train_time,
        }
        if self.reward.ends_episodes and ended:
            values["failed_share"] = self.reward.failures / ended
            self.reward.failures = 0
        scalars = TrainScalars(global_step=self.step, iteration=self.iteration, values=values)
        self.ctx.send(ScalarsReady(scalars=scalars))
        before = self.step - self.config.batch_size
        if evaluation_due(self.config, before, self.step):
            began = time.perf_counter()
            self.evaluate(self.learner.policy())
            self.elapsed += time.perf_counter() - began
        stops = self.ctx.until is not None and self.iteration == self.last_iteration
        if stops or checkpoint_due(self.config, before, self.step):
            self._checkpoint()

    def evaluate(self, policy: Policy) -> None:
        """Play the policy, leave it and its episodes in the folder, and tell the parent.

        Environments and rewards are made once, and start alike at every checkpoint.
        """
        config = self.config
        with keep_generators() if is_engine(config.engine) else nullcontext():
            if self._evaluation is None:
                env = self._make_environment(config.eval_envs, recorded=True)
                self._resources.callback(env.close)
                code, batched = self.ctx.reward_code, self.reward.batched
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
        if getattr(self.env, "shares_simulation", False):  # so that no episode goes on falsely
            self.learner.restart()

    def start_policy(self) -> Policy | None:
        """Return what training starts from, where it does not start from nothing."""
        path = self.ctx.folder / START_POLICY
        try:
            return Policy.load(path) if path.is_file() else None
        except PolicyFileError as error:  # not the reward's fault
            raise ConfigurationError(str(error)) from error

    def save_environments(self) -> Arrays:
        """Return where the environments stand.

        A reward that keeps state cannot be saved, since its state is whatever it likes. There, and
        where the environments cannot be saved, new episodes begin at every checkpoint, with new
        reward objects, in runs that are never interrupted as well.
        """
        if not self.reward.stateful:
            try:
                return add_prefix("environments", self.env.state_dict())
            except NotImplementedError:
                pass
        self.reward.restart()
        self._seeding = SEEDING
        self.learner.restart(self.restart_seed())
        self.episodes.restart()
        return {}

    def load_environments(self, arrays: Arrays) -> None:
        """Bring the environments to where `save_environments` left them."""
        environments = part("environments", arrays)
        if environments:
            self.env.load_state_dict(environments)
        elif self._seeding == SEEDING:
            self.env.reset_batch(row_seeds(self.restart_seed(), self.env.num_envs))
        else:  # earlier versions seeded row i with seed + i
            self.env.reset_batch(self.restart_seed())

    def _checkpoint(self) -> None:
        arrays = self.learner.state()
        episodes, episode_meta = self.episodes.state()
        meta = {
            **identity_of(self.config, self.ctx.reward_code),
            "batched": self.reward.batched,
            "note": self.note,
            "iteration": self.iteration,
            "elapsed": self.elapsed,
            "episodes": episode_meta,
            "seeding": self._seeding,
        }
        file = save_state(
            self.ctx.folder, self.step, {**arrays, **add_prefix("episodes", episodes)}, meta
        )
        self.ctx.send(StateSaved(global_step=self.step, file=file))


SEEDING = "spawned"
"""How the rows of a state were seeded; states of earlier versions do not say."""


class Stepper:
    """Steps the environments with their reward, and knows where each of them stands."""

    def __init__(self, env: BatchedEnv, reward: RewardRunner) -> None:
        self._env, self._reward = env, reward
        self.obs: NDArray[np.float64] = np.zeros(
            (env.num_envs, int(np.prod(env.single_observation_space.shape)))
        )
        self.starts: NDArray[np.bool_] = np.ones(env.num_envs, np.bool_)
        """Where the next step is the first of an episode."""
        self._pending: list[Transition] = []
        self._blocks: list[Rewards] = []

    def restart(self, seed: int | None = None) -> None:
        """Begin new episodes everywhere; with a seed, with environments seeded anew."""
        count = self._env.num_envs
        self.obs = self._env.reset_batch(None if seed is None else row_seeds(seed, count))
        self.starts = np.ones(count, np.bool_)

    def step(self, action: NDArray[np.float32], *, last: bool) -> StepBatch:
        """Take a step; the `last` one is that before `rewards`. Raises RewardError."""
        reward = self._reward
        step = self._env.step_batch(action)
        transition = Transition(self.obs, action, step.next_obs, step.info, self.starts)
        self._pending.append(transition)
        if last or len(self._pending) >= reward.block_steps:
            self._blocks.append(reward.block(self._pending))
            self._pending.clear()
        if reward.ends_episodes:
            step = end_failures(self._env, reward, transition, step)
        self.starts = step.terminated | step.truncated
        self.obs = step.obs
        return step

    def rewards(self) -> Rewards:
        """Totals and terms, (T, N) each, of the steps since the last call."""
        totals, parts = zip(*self._blocks, strict=True)
        self._blocks.clear()
        terms = {name: np.concatenate([block[name] for block in parts]) for name in parts[0]}
        return np.concatenate(totals), terms

    def state(self) -> Arrays:
        return {"obs": self.obs, "starts": self.starts}

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.obs, self.starts = arrays["obs"].copy(), arrays["starts"].copy()


@contextmanager
def keep_generators() -> Iterator[None]:
    """Leave the process's random generators as they were: engines draw from them in training."""
    from p2p.training.torch_states import load_generators, save_generators

    before = save_generators()
    yield
    load_generators(before)


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
