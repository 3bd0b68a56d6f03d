"""The reward of N environments, called once for all of them or once for each.

Building a runner executes the reward's source: inside the sandbox only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from p2p.training.envs.batched_env import trial_range
from p2p.training.reward.calls import CheckedReward, Floats, Transition
from p2p.training.reward_function import RewardError, Rows, spec_of
from p2p.training.reward_loader import DEFAULT_NAME, parse_source
from p2p.training.specs.quantities import join_infos

if TYPE_CHECKING:
    from p2p.training.envs.batched_env import BatchedEnv, StepBatch

COMPARED_ROWS = 16
"""Of a large batch only so many environments are rewarded singly for comparison."""
FLOAT32_ORDER = 1e-6
"""Actions are float32: sums over them may differ by this much of a value's largest."""
ROWS_AT_ONCE = 512
"""Rows of a call: enough that its cost no longer counts; few enough to stay in the cache."""
RESTART_EVERY = 11
ZERO_ACTIONS = (8, 16)
"""Of every `ZERO_ACTIONS[1]` trial steps the last `ZERO_ACTIONS[0]` are made with zero actions."""

Rewards = tuple[Floats, dict[str, Floats]]
"""Totals and terms by name: (N,) each, or (K, N) for K steps."""


class RewardRunner:
    """Turns transitions of N environments into rewards and terms, all checked.

    `batched`: one reward object sees (N, ...) arrays, in one call. Otherwise every environment has
    a reward object of its own, which sees single transitions. `decide_batched` tells whether the
    first is safe. `stateful` is read off the source and may err on the side of True.

    Right after the physics numpy's calls cost twice as much as in a row, and a batched reward that
    keeps no state cannot tell whether its rows are of one step or of many. So `block` rewards
    `block_steps` of them in one call. The first block is rewarded both ways, with a second reward
    object; if that makes a difference (state that the source does not show), it stays with single
    steps. So it does for a reward that looks at the simulator's own state, where it is there to be
    looked at (`side_info`).
    """

    def __init__(
        self,
        code: str,
        num_envs: int,
        *,
        batched: bool,
        engine: str = "mujoco",
        name: str = DEFAULT_NAME,
        side_info: BatchedEnv | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.batched = batched
        self._source = parse_source(code, engine, name=name)
        self._side_info = side_info if self._source.reads_simulator else None
        self._calls: list[CheckedReward] = []
        self.restart()
        self.spec = spec_of(self._calls[0].reward)
        self.stateful = self._source.stateful or self._calls[0].has_reset
        single = not batched or self.stateful or self._side_info is not None
        self.block_steps = 1 if single else max(1, ROWS_AT_ONCE // num_envs)
        """How many steps to gather for a call of `block`."""
        self._block_call: CheckedReward | None = None
        self._compared = False
        self.failures = 0
        """How often `failed` was true, in all calls."""
        self.seconds = 0.0
        """What the reward's calls have taken."""

    @property
    def term_names(self) -> tuple[str, ...]:
        """The terms, in the order the reward returns them; empty before the first call."""
        return self._calls[0].names or ()

    @property
    def ends_episodes(self) -> bool:
        """Whether the reward says where training ends an episode early."""
        return self._calls[0].has_failed

    @property
    def has_reset(self) -> bool:
        """Whether the reward is told of new episodes, apart from `_episode_start`."""
        return self._calls[0].has_reset

    def restart(self) -> None:
        """Make fresh reward objects, by executing the source again."""
        rows: Sequence[int | None] = [None] if self.batched else range(self.num_envs)
        self._calls = [self._build(row) for row in rows]

    def _build(self, row: int | None) -> CheckedReward:
        return CheckedReward(
            self._source.build(),
            row=row,
            file=self._source.name,
            before_traceback=self._source.remember_lines,
        )

    def __call__(self, transition: Transition) -> Rewards:
        """Rewards (N,) and terms {name: (N,)}; raises RewardError."""
        began = time.perf_counter()
        if self.batched:
            values = self._calls[0].batch(self._with_side_info(transition))
        else:
            values = self._each(transition)
        self.seconds += time.perf_counter() - began
        return values[0], dict(zip(self.term_names, values[1:], strict=True))

    def failed(self, transition: Transition) -> Rows:
        """Where the reward ends the episode, (N,); call it after the step was rewarded."""
        if self.batched:
            failed = self._calls[0].failed(*self._with_side_info(transition))
        else:
            rows = zip(self._calls, self._rows(transition), strict=True)
            failed = np.array([call.failed(*row) for call, row in rows])
        self.failures += int(np.count_nonzero(failed))
        return failed

    def _with_side_info(self, transition: Transition) -> Transition:
        if self._side_info is None:
            return transition
        return transition._replace(info={**transition.info, **self._side_info.side_info()})

    def _rows(self, transition: Transition) -> Iterator[tuple[Any, Any, Any, dict[str, Any], bool]]:
        """The arguments of each environment's own reward."""
        obs, action, next_obs, info, episode_start = transition
        for i, start in enumerate(episode_start.tolist()):
            row_info = {key: value[i] for key, value in info.items()}
            if self._side_info is not None:
                row_info.update(self._side_info.row_side_info(i))
            yield obs[i], action[i], next_obs[i], row_info, start

    def _each(self, transition: Transition) -> Floats:
        rows = []
        for call, row in zip(self._calls, self._rows(transition), strict=True):
            if call.names is None:
                call.names = self._calls[0].names
            rows.append(call.single(*row))
        return np.array(rows).T.copy()

    def block(self, steps: Sequence[Transition]) -> Rewards:
        """Rewards (K, N) and terms {name: (K, N)}; raises RewardError, at the step to blame."""
        if self.block_steps == 1 or len(steps) == 1:
            return self._one_by_one(steps)
        began = time.perf_counter()
        try:
            block = self._all_at_once(steps)
        except RewardError:
            block = None
        self.seconds += time.perf_counter() - began
        if block is not None and self._compared:
            self._calls[0].step += len(steps)
            return block
        # The first block; or one that failed, whose steps now show which of them is to blame.
        single = self._one_by_one(steps)
        if block is not None and not _difference(_flat(single), _flat(block), {}, 0):
            self._compared = True
            return block
        self.block_steps = 1
        return single

    def _one_by_one(self, steps: Sequence[Transition]) -> Rewards:
        rewards = [self(step) for step in steps]
        if len(rewards) == 1:
            total, terms = rewards[0]
            return total[None], {name: values[None] for name, values in terms.items()}
        return (
            np.stack([total for total, _ in rewards]),
            {name: np.stack([terms[name] for _, terms in rewards]) for name in self.term_names},
        )

    def _all_at_once(self, steps: Sequence[Transition]) -> Rewards | None:
        """None if the steps cannot be put together, because their info differs in its keys."""
        info = join_infos([step.info for step in steps])
        if info is None:
            return None
        if self._block_call is None:
            self._block_call = self._build(None)
        values = self._block_call.batch(
            Transition(
                np.concatenate([step.obs for step in steps]),
                np.concatenate([step.action for step in steps]),
                np.concatenate([step.next_obs for step in steps]),
                info,
                np.concatenate([step.episode_start for step in steps]),
            )
        ).reshape(-1, len(steps), self.num_envs)
        return values[0], dict(zip(self._block_call.names or (), values[1:], strict=True))


def _flat(rewards: Rewards) -> Rewards:
    total, terms = rewards
    return total.ravel(), {name: values.ravel() for name, values in terms.items()}


def trial_transitions(env: BatchedEnv, steps: int, seed: int = 0) -> Iterator[Transition]:
    """Real transitions to try a reward on: random and zero actions, with episodes that begin anew.

    `env` is reset first, and some of its rows now and then. While a transition is looked at, the
    environment's side information is that of it.
    """
    rng = np.random.default_rng(seed)
    space = env.single_action_space
    low, high = trial_range(space)
    shape = (env.num_envs, *(space.shape or ()))
    obs = env.reset_batch(seed)
    start = np.ones(env.num_envs, np.bool_)
    for step in range(steps):
        zero = step % ZERO_ACTIONS[1] >= ZERO_ACTIONS[1] - ZERO_ACTIONS[0]
        action = (np.zeros(shape) if zero else rng.uniform(low, high, shape)).astype(np.float32)
        batch = env.step_batch(action)
        yield Transition(obs, action, batch.next_obs, batch.info, start)
        obs, start = batch.obs, batch.terminated | batch.truncated
        if step % RESTART_EVERY == RESTART_EVERY - 1:
            rows = rng.random(env.num_envs) < 0.5
            obs, start = env.restart(rows), start | rows


def decide_batched(
    code: str,
    env: BatchedEnv,
    *,
    steps: int = 64,
    seed: int = 0,
    side_info: bool = False,
    engine: str = "mujoco",
    name: str = DEFAULT_NAME,
) -> tuple[bool, str]:
    """Whether a batch may be given to the reward at once, and if not, why.

    Real transitions through several episodes are rewarded both ways, each with objects of its own,
    and compared. `env` is reset and stepped for it. Raises RewardError for a reward that fails on
    single transitions, since then it works nowhere but here.
    """
    rows = min(env.num_envs, COMPARED_ROWS)
    source = env if side_info else None
    single = RewardRunner(code, rows, batched=False, engine=engine, name=name, side_info=source)
    batch = RewardRunner(
        code, env.num_envs, batched=True, engine=engine, name=name, side_info=source
    )
    reason = "" if env.num_envs > 1 else "with one environment there is nothing to batch"
    scale: dict[str, float] = {}
    first_steps = _FirstSteps()
    for step, transition in enumerate(trial_transitions(env, steps, seed)):
        obs, action, next_obs, info, start = transition
        first_info = {key: value[:rows] for key, value in info.items()}
        first = Transition(obs[:rows], action[:rows], next_obs[:rows], first_info, start[:rows])
        expected = single(first)
        if not reason:
            try:
                together = batch(transition)
            except RewardError as error:
                reason = f"on a batch: {str(error).splitlines()[0]}"
            else:
                reason = _difference(expected, together, scale, step)
        if single.ends_episodes:
            ended = first_steps.checked(single, first)
            if not reason and not np.array_equal(ended, batch.failed(transition)[:rows]):
                reason = f"failed at step {step} differs between a batch and single environments"
    first_steps.check_any_last()
    return not reason, reason


class _FirstSteps:
    """Tries `failed`, and sees to it that it leaves something to learn from."""

    def __init__(self) -> None:
        self._began = self._ended = 0

    def checked(self, runner: RewardRunner, transition: Transition) -> Rows:
        """What `failed` says, asked twice; raises RewardError."""
        failed, again = runner.failed(transition), runner.failed(transition)
        if not np.array_equal(failed, again):
            raise RewardError("failed gives two answers for the same step: it must only look at "
                              "its arguments", term="failed")  # fmt: skip
        self._began += int(np.count_nonzero(transition.episode_start))
        self._ended += int(np.count_nonzero(failed & transition.episode_start))
        return failed

    def check_any_last(self) -> None:
        if self._began and self._ended == self._began:
            raise RewardError(
                f"failed is true on the first step of all {self._began} episodes that were tried: "
                "no training episode would last. Let it be true only where the robot can no "
                "longer do what is asked",
                term="failed",
            )  # fmt: skip


def end_failures(
    env: BatchedEnv, reward: RewardRunner, transition: Transition, step: StepBatch
) -> StepBatch:
    """A rewarded step, in which the rows that the reward calls failed have terminated."""
    failed = reward.failed(transition)
    if not failed.any():
        return step
    going_on = failed & ~(step.terminated | step.truncated)
    obs = env.restart(going_on) if going_on.any() else step.obs
    return replace(step, obs=obs, terminated=step.terminated | failed)


def _difference(single: Rewards, batch: Rewards, scale: dict[str, float], step: int) -> str:
    """Where batch and single differ by more than the order of float32 sums can explain."""
    expected, together = ({**terms, "": total} for total, terms in (single, batch))
    if expected.keys() != together.keys():
        return f"the terms are {', '.join(together)} on a batch, {', '.join(expected)} on one"
    for name, alone in expected.items():
        values = together[name][: len(alone)]
        scale[name] = max(scale.get(name, 0.0), float(np.abs(alone).max()))
        wrong = np.abs(alone - values) > FLOAT32_ORDER * scale[name] + 1e-9
        if wrong.any():
            row = int(wrong.argmax())
            return (
                f"{name or 'the total'} at step {step} in environment {row} is {alone[row]:.6g} "
                f"alone but {values[row]:.6g} in a batch"
            )
    return ""
