"""Episodes: those of training as they are counted, and what a policy does when it does its best.

Evaluation is deterministic, on fixed seeds: episode e starts from `seed + e`, the same at every
checkpoint and in every run, so that curves and configurations compare on equal starts. Training
rows are seeded from TrainConfig.seed, below 2**32; evaluation seeds begin there, so no episode is
both trained on and measured. A confirmation on held-out seeds takes another block of
`evaluation_seed`.

`evaluate` plays with a reward: inside the sandbox only. `play_episodes` plays for judges, without
any reward code, so it needs no sandbox; the `reward` column is then the environment's own.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2p.contracts import ROLLOUT_LABELS, EvalResult
from p2p.training.engines.table import is_engine
from p2p.training.envs.batched_env import trial_range
from p2p.training.model_files.store import is_model
from p2p.training.reward_runner import Transition
from p2p.training.specs.quantities import QUANTITIES, join_infos
from p2p.training.trajectory import (
    ENV_REWARD,
    NAMES_KEY,
    TERM_PREFIX,
    RecordedEpisode,
    info_columns,
)

if TYPE_CHECKING:
    from p2p.config import TrainConfig
    from p2p.training.envs.batched_env import BatchedEnv, Seeds, StepBatch
    from p2p.training.policies.policy import Policy
    from p2p.training.reward_runner import RewardRunner, Rewards


F64 = NDArray[np.float64]
Act = Callable[[F64], NDArray[np.float32]]
Behaviour = Literal["zero", "random"]

RECORD_BYTES = 256 << 20
"""Memory for recording. Where all episodes would take more, only the first rows are recorded, and
the labelled episodes are chosen among those; the statistics always cover every episode."""
QUANTILES = dict(zip(ROLLOUT_LABELS, (0.1, 0.5, 0.9), strict=True))
ALIVE_EVERY_S = 1.0
BLOCK_STEPS = 64
"""Steps that are measured at once."""
PLAYED_ROWS = 8
"""Episodes side by side for judges, however many are asked for: the last bits of an action depend
on how many are computed at once, and a long episode may depend on the last bits."""


def evaluation_seed(block: int = 0) -> int:
    """Return the seed for `evaluate`; blocks of up to 2**20 episodes share none."""
    return (1 << 32) + block * (1 << 20)


def evaluate(
    env: BatchedEnv,
    reward: RewardRunner,
    act: Act,
    *,
    rounds: int,
    seed: int,
    step: int,
    stride: int = 1,
    alive: Callable[[], None] = lambda: None,
    record_bytes: int = RECORD_BYTES,
    episodes: int | None = None,
) -> tuple[EvalResult, dict[str, RecordedEpisode]]:
    """Play rounds x env.num_envs episodes; measure all, keep the p10, median and p90 one.

    The result depends on nothing but its arguments: environment and reward are started anew. Each
    row plays one episode per round; what a row does after its episode ended is ignored.

    `env` and `reward` are of their own, not those that training steps; `act` turns observations
    (N, D) into actions (N, A). Episode e = round * num_envs + row is seeded with seed + e. Every
    stride-th step of the recorded episodes is kept, and the last. `alive` is called about once a
    second. `episodes` counts only so many, the first. With fewer than three, labels share one.
    """
    n = env.num_envs
    beat = _Beat(alive)
    played: list[_Round] = []
    for number in range(rounds):
        reward.restart()
        recorder = _Recorder(env, stride, record_bytes // rounds)
        played.append(_play(env, act, seed + number * n, recorder, reward, beat))
    returns = np.concatenate([each.returns for each in played])[:episodes]
    lengths = np.concatenate([each.lengths for each in played])[:episodes]
    terms = {
        name: np.concatenate([each.terms[name] for each in played])[:episodes]
        for name in played[0].terms
    }
    recorded = [e for e in range(len(returns)) if e % n < recorder.rows]
    chosen = representative_episodes(returns[recorded])
    rollouts = {label: recorded[i] for label, i in chosen.items()}
    trajectories = {label: played[e // n].trajectory(e % n) for label, e in rollouts.items()}
    result = summarize(step, returns, lengths, terms, rollouts)
    if is_model(env.env_id):  # which has no reward of its own
        return result, trajectories
    own = np.concatenate([each.env_returns for each in played])[:episodes]
    return result.model_copy(update={"env_return": float(own.mean())}), trajectories


def record_episodes(
    config: TrainConfig,
    act: Policy | Behaviour,
    *,
    episodes: int,
    seed: int,
) -> list[RecordedEpisode]:
    """Play and record this many episodes, the i-th of them seeded with seed + i.

    Every step is kept, whatever the configuration's stride. Equal arguments give equal episodes,
    and fewer of them the first of more. An engine's process is sandboxed, though it runs no
    generated code; SandboxUnavailable where that cannot be.
    """
    played = play_episodes(config, act, episodes=episodes, seed=seed)
    return list(played)


def record_behaviours(
    config: TrainConfig, acts: Sequence[Behaviour], *, episodes: int, seed: int
) -> list[RecordedEpisode]:
    """Return what `record_episodes` gives for each of these in turn, played side by side."""
    if is_engine(config.engine):
        from p2p.training.engines.facts import play_behaviours_in_engine

        rows = min(PLAYED_ROWS, episodes)
        return play_behaviours_in_engine(config, acts, rows=rows, episodes=episodes, seed=seed)
    if is_model(config.env_id):
        return [
            episode
            for act in acts
            for episode in record_episodes(config, act, episodes=episodes, seed=seed)
        ]
    with _recorded_env(config, len(acts) * episodes) as env:
        recorder = _Recorder(env, stride=1)
        act, seeds = side_by_side(acts, env, episodes, seed)
        played = _play(env, act, seeds, recorder)
        return [played.trajectory(row) for row in range(env.num_envs)]


def play_paid(
    env: BatchedEnv, act: Act, seeds: Seeds, reward: RewardRunner, alive: Callable[[], None]
) -> tuple[F64, NDArray[np.int64], dict[str, F64]]:
    """Return, length and sum of each term of one episode of each row."""
    reward.restart()
    played = _play(env, act, seeds, None, reward, _Beat(alive))
    return played.returns, played.lengths, played.terms


def play_episodes(
    config: TrainConfig,
    act: Policy | Behaviour,
    *,
    episodes: int,
    seed: int,
) -> Iterator[RecordedEpisode]:
    """Yield episodes as `record_episodes` does, with only a few in memory at a time."""
    rows = min(PLAYED_ROWS, episodes) if isinstance(act, str) else PLAYED_ROWS
    if is_engine(config.engine):
        from p2p.training.engines.facts import play_in_engine

        yield from play_in_engine(config, [act], rows=rows, episodes=episodes, seed=seed)
    elif is_model(config.env_id):
        from p2p.training.model_files.playing import play_in_sandbox

        yield from play_in_sandbox(config, act, rows=rows, episodes=episodes, seed=seed)
    else:
        yield from play_here(config, act, rows=rows, episodes=episodes, seed=seed)


def play_here(
    config: TrainConfig, act: Policy | Behaviour, *, rows: int, episodes: int, seed: int
) -> Iterator[RecordedEpisode]:
    """Play episodes of a Gymnasium environment in this process."""
    with _recorded_env(config, rows) as env:
        yield from play_rounds(env, act, episodes=episodes, seed=seed)


def _recorded_env(config: TrainConfig, rows: int) -> closing[BatchedEnv]:
    from p2p.training.vec_env import make_batched_env

    options = replace(config.env_options(), side_info=True, quantities=QUANTITIES, num_threads=1)
    return closing(make_batched_env(options, rows))


def play_rounds(
    env: BatchedEnv,
    act: Policy | Behaviour,
    *,
    episodes: int,
    seed: int,
) -> Iterator[RecordedEpisode]:
    """Episodes of these environments, as many at once as there are rows."""
    for first in range(0, episodes, env.num_envs):
        begin = seed + first
        recorder = _Recorder(env, stride=1)
        played = _play(env, acting(act, env, begin), begin, recorder)
        for row in range(min(env.num_envs, episodes - first)):
            yield played.trajectory(row)


def acting(act: Policy | Behaviour, env: BatchedEnv, seed: int, rows: int | None = None) -> Act:
    """Return what acts in one round of episodes; random actions come of each row's own seed.

    `rows`: of so many rows; None: of all.
    """
    if not isinstance(act, str):
        return act.act
    space = env.single_action_space
    rows = env.num_envs if rows is None else rows
    shape = (rows, *(space.shape or ()))
    if act == "zero":
        still = np.clip(np.zeros(shape), space.low, space.high).astype(np.float32)
        return lambda _: still
    low, high = trial_range(space)
    generators = [np.random.default_rng(seed + row) for row in range(rows)]
    return lambda _: np.stack([g.uniform(low, high) for g in generators]).astype(np.float32)


def side_by_side(
    acts: Sequence[Policy | Behaviour], env: BatchedEnv, rows: int, seed: int
) -> tuple[Act, list[int]]:
    """Return the actor for several groups of rows, and the seeds of all rows."""
    parts = [acting(act, env, seed, rows) for act in acts]

    def act_together(obs: F64) -> NDArray[np.float32]:
        own = (obs[k * rows : (k + 1) * rows] for k in range(len(parts)))
        return np.concatenate([act(each) for act, each in zip(parts, own, strict=True)])

    return act_together, [*range(seed, seed + rows)] * len(acts)


@dataclass(frozen=True, slots=True)
class _Round:
    """One episode of each row."""

    returns: F64
    env_returns: F64
    lengths: NDArray[np.int64]
    terms: dict[str, F64]
    recorder: _Recorder | None

    def trajectory(self, row: int) -> RecordedEpisode:
        assert self.recorder is not None
        return self.recorder.trajectory(row, int(self.lengths[row]), tuple(self.terms))


def _play(
    env: BatchedEnv,
    act: Act,
    seed: Seeds,
    recorder: _Recorder | None,
    reward: RewardRunner | None = None,
    beat: Callable[[], None] = lambda: None,
) -> _Round:
    n = env.num_envs
    returns, env_returns, lengths = np.zeros(n), np.zeros(n), np.zeros(n, np.int64)
    terms: dict[str, F64] = defaultdict(lambda: np.zeros(n))
    active, start = np.ones(n, np.bool_), np.ones(n, np.bool_)
    obs = env.reset_batch(seed)
    pending: list[_Step] = []
    for t in range(env.max_episode_steps):
        action = act(obs)
        batch = env.step_batch(action)
        transition = Transition(obs, action, batch.next_obs, batch.info, start)
        paid = reward(transition) if reward is not None and reward.block_steps == 1 else None
        start = batch.terminated | batch.truncated
        env_returns += np.where(active, batch.reward, 0.0)
        lengths[active] = t + 1
        last = bool((active & start).any()) or t == env.max_episode_steps - 1
        fields = None
        if recorder is not None and recorder.wants(t, last):
            fields = {name: value.copy() for name, value in env.trajectory_fields().items()}
        pending.append(_Step(t, transition, batch, paid, active, fields))
        active = active & ~start
        over = not active.any() or t == env.max_episode_steps - 1
        if over or len(pending) == BLOCK_STEPS:
            _add_steps(pending, recorder, reward, returns, terms)
            pending.clear()
        if over:
            break
        obs = batch.obs
        beat()
    return _Round(returns, env_returns, lengths, dict(terms), recorder)


class _Step(NamedTuple):
    """A step that is played and not measured yet."""

    number: int
    transition: Transition
    batch: StepBatch
    paid: Rewards | None
    """By a reward that is to see each step by itself."""
    active: NDArray[np.bool_]
    """The rows whose episode goes on in it."""
    fields: dict[str, NDArray[Any]] | None
    """Of the states that it reached; None where it is not recorded."""


def _add_steps(
    steps: Sequence[_Step],
    recorder: _Recorder | None,
    reward: RewardRunner | None,
    returns: F64,
    terms: dict[str, F64],
) -> None:
    """Reward, measure and record a batch of steps at once, because numpy calls cost the same."""
    totals, parts = np.stack([step.batch.reward for step in steps]), dict[str, F64]()
    paid = [step.paid for step in steps if step.paid is not None]
    if paid:
        totals = np.stack([total for total, _ in paid])
        parts = {name: np.stack([terms[name] for _, terms in paid]) for name in paid[0][1]}
    elif reward is not None:
        totals, parts = reward.block([step.transition for step in steps])
    joined = join_infos([step.batch.info for step in steps]) if recorder is not None else None
    columns: dict[str, NDArray[Any]] = {}
    if joined is not None:
        columns = {
            name: column.reshape(len(steps), -1, *column.shape[1:])
            for name, column in info_columns(joined).items()
        }
    paid_so_far = np.empty_like(totals)
    for k, step in enumerate(steps):
        returns += np.where(step.active, totals[k], 0.0)
        paid_so_far[k] = returns
        for name, values in parts.items():
            terms[name] += np.where(step.active, values[k], 0.0)
    kept = [k for k, step in enumerate(steps) if step.fields is not None]
    if recorder is None or not kept:
        return
    played = [steps[k] for k in kept]
    if joined is None:
        columns = _stack([info_columns(step.batch.info) for step in played])
    else:
        columns = {name: column[kept] for name, column in columns.items()}
    recorder.add(
        [step.number for step in played],
        {
            "obs": np.stack([step.transition.obs for step in played]),
            "action": np.stack([step.transition.action for step in played]),
            "next_obs": np.stack([step.batch.next_obs for step in played]),
            "reward": totals[kept],
            "cumulative_reward": paid_so_far[kept],
            "terminated": np.stack([step.batch.terminated for step in played]),
            "truncated": np.stack([step.batch.truncated for step in played]),
            **{TERM_PREFIX + name: values[kept] for name, values in parts.items()},
            **_stack([step.fields or {} for step in played]),
            **columns,
            ENV_REWARD: np.stack([step.batch.reward for step in played]),
        },
    )


def _stack(steps: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Return what all steps have, (steps, rows, ...)."""
    names = [name for name in steps[0] if all(name in step for step in steps)]
    return {name: np.stack([step[name] for step in steps]) for name in names}


def representative_episodes(returns: Sequence[float] | F64) -> dict[str, int]:
    """The index of the p10, median and p90 episode, by nearest rank; three of them if there are."""
    order = np.argsort(returns, kind="stable")
    return {label: int(order[math.ceil(q * len(order)) - 1]) for label, q in QUANTILES.items()}


def summarize(
    step: int,
    returns: F64,
    lengths: NDArray[np.int64],
    terms: Mapping[str, F64],
    rollouts: Mapping[str, int],
) -> EvalResult:
    """The statistics of episodes. Percentiles are interpolated, as numpy's are."""
    p10, median, p90 = (float(p) for p in np.percentile(returns, [10, 50, 90]))
    return EvalResult(
        global_step=step,
        all_returns=tuple(returns.tolist()),
        episode_lengths=tuple(lengths.tolist()),
        mean_return=float(returns.mean()),
        std_return=float(returns.std()),
        min_return=float(returns.min()),
        max_return=float(returns.max()),
        median_return=median,
        p10_return=p10,
        p90_return=p90,
        episode_length=float(lengths.mean()),
        total_reward=float(returns[rollouts["median"]]),
        reward_terms={name: float(sums.mean()) for name, sums in terms.items()},
        rollouts=dict(rollouts),
    )


class _Beat:
    """Calls back about once a second, however often it is called."""

    def __init__(self, alive: Callable[[], None]) -> None:
        self._alive, self._last = alive, time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._last > ALIVE_EVERY_S:
            self._last = now
            self._alive()


class _Recorder:
    """The steps of one round: for the first rows, float32, one array per step and column."""

    def __init__(self, env: BatchedEnv, stride: int, max_bytes: int | None = None) -> None:
        self.rows = 0
        self._dt, self._stride, self._max_bytes = env.dt, stride, max_bytes
        self._max_steps, self._num_envs = -(-env.max_episode_steps // stride), env.num_envs
        self._steps: list[int] = []
        self._columns: dict[str, list[NDArray[Any]]] = defaultdict(list)

    def wants(self, step: int, last: bool) -> bool:
        """Return whether to record this step; `last`: an episode ends with it."""
        return last or step % self._stride == 0

    def add(self, steps: Sequence[int], columns: Mapping[str, NDArray[Any]]) -> None:
        """These steps, in columns of shape (steps, rows, ...)."""
        if not self._steps:
            self.rows = self._num_envs
            if self._max_bytes is not None:
                per_step = sum(_compact(column[:1, :1]).nbytes for column in columns.values())
                fitting = self._max_bytes // (per_step * self._max_steps)
                # Below three rows there would be nothing to choose from.
                self.rows = min(self._num_envs, max(3, fitting))
        self._steps += steps
        for name, column in columns.items():
            self._columns[name].append(_compact(column[:, : self.rows]))

    @cached_property
    def _row_columns(self) -> dict[str, NDArray[Any]]:
        """Of all rows, (steps, rows, ...); no step is added any more."""
        blocks, self._columns = self._columns, defaultdict(list)
        columns = {name: np.concatenate(parts) for name, parts in blocks.items()}
        # Info that comes and goes is no column.
        return {name: c for name, c in columns.items() if len(c) == len(self._steps)}

    def trajectory(self, row: int, length: int, terms: tuple[str, ...]) -> RecordedEpisode:
        """The row's own episode: strided, with its last step, nothing of what came after."""
        kept = [
            i
            for i, step in enumerate(self._steps)
            if step < length and (step % self._stride == 0 or step == length - 1)
        ]
        steps = np.array([self._steps[i] for i in kept], np.int64)
        columns = {name: column[kept, row] for name, column in self._row_columns.items()}
        return RecordedEpisode.from_arrays(
            {
                "step": steps,
                "timestamp": (steps + 1) * self._dt,
                **columns,
                NAMES_KEY: np.array(terms, dtype=np.str_),
            }
        )


def _compact(value: NDArray[Any]) -> NDArray[Any]:
    """Copy an array, as float32 if it has floats."""
    return value.astype(np.float32 if value.dtype.kind == "f" else value.dtype)


class EpisodeLog:
    """Sums rewards over episodes and keeps the last `window` of those that ended."""

    def __init__(self, num_envs: int, window: int) -> None:
        self.window, self.total = window, 0
        """Episodes ended so far."""
        self._names: tuple[str, ...] = ()
        # Of episodes under way, per environment: return, each term, length.
        self._open: NDArray[np.float64] = np.zeros((2, num_envs))
        self._ended: deque[NDArray[np.float64]] = deque(maxlen=window)

    def add(
        self,
        rewards: NDArray[np.float64],
        terms: Mapping[str, NDArray[np.float64]],
        dones: NDArray[np.bool_],
    ) -> int:
        """Take in a rollout, every array (T, N); return how many episodes ended in it."""
        self._name(tuple(terms))
        steps, num_envs = rewards.shape
        rows = np.stack([rewards, *terms.values(), np.ones_like(rewards)])
        flat = rows.transpose(0, 2, 1).reshape(len(rows), -1)  # environment by environment
        last = dones.T.copy()
        last[:, -1] = True
        ends = np.flatnonzero(last)
        starts = np.concatenate([[0], ends[:-1] + 1])
        sums = np.add.reduceat(flat, starts, axis=1)
        first = np.searchsorted(starts, np.arange(num_envs) * steps)
        sums[:, first] += self._open
        closed = dones.T.ravel()[ends]
        final = np.append(first[1:], len(starts)) - 1
        self._open = np.where(closed[final], 0.0, sums[:, final])
        finished = np.flatnonzero(closed)
        in_time = finished[np.argsort(ends[finished] % steps, kind="stable")]
        self._ended.extend(sums[:, i] for i in in_time)
        self.total += len(finished)
        return len(finished)

    def extend(self, names: tuple[str, ...], ended: NDArray[np.float64], count: int) -> int:
        """Take in the last of `count` episodes that ended, summed elsewhere: (E, 2 + terms)."""
        self._name(names)
        self._ended.extend(ended)
        self.total += count
        return count

    def metrics(self) -> dict[str, float]:
        """Over the window: returns, mean length, mean sum of each term; empty before an end."""
        if not self._ended:
            return {}
        ended = np.array(self._ended)
        returns, terms = ended[:, 0], ended[:, 1:-1].mean(axis=0)
        values = {
            "episodic_return": returns.mean(),
            "episodic_return_std": returns.std(),
            "episodic_return_min": returns.min(),
            "episodic_return_max": returns.max(),
            "episode_length": ended[:, -1].mean(),
        }
        values |= {f"reward_term_{n}": v for n, v in zip(self._names, terms, strict=True)}
        return {name: float(value) for name, value in values.items()}

    def restart(self) -> None:
        """Forget the episodes under way: new ones begin everywhere."""
        self._open = np.zeros_like(self._open)

    def state(self) -> tuple[dict[str, NDArray[np.float64]], dict[str, Any]]:
        ended = np.array(self._ended).reshape(-1, len(self._open))
        return {"open": self._open, "ended": ended}, {"total": self.total, "names": self._names}

    def load_state(
        self, arrays: Mapping[str, NDArray[np.float64]], meta: Mapping[str, Any]
    ) -> None:
        self.total, self._names = int(meta["total"]), tuple(meta["names"])
        self._open = arrays["open"].copy()
        self._ended.clear()
        self._ended.extend(arrays["ended"].copy())

    def _name(self, names: tuple[str, ...]) -> None:
        if self._names != names:
            if self._names:
                raise ValueError(f"reward terms were {self._names}, now {names}")
            self._names = names
            self._open = np.zeros((len(names) + 2, self._open.shape[1]))
