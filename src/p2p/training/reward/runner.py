"""The reward of N environments, called once for all of them or once for each.

Building a runner executes the reward's source: inside the sandbox only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from p2p.training.reward.calls import CheckedReward
from p2p.training.reward.trial import Transition, transitions
from p2p.training.reward_function import RewardError, Rows, spec_of
from p2p.training.reward_loader import DEFAULT_NAME, parse_source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from p2p.contracts import RewardSpec
    from p2p.training.envs.batched_env import BatchedEnv
    from p2p.training.reward.calls import Floats


COMPARED_ROWS = 16
"""Of a large batch only so many environments are rewarded singly for comparison."""
FLOAT32_ORDER = 1e-6
"""Actions are float32: sums over them may differ by this much of a term's largest value."""


class SideInfoSource(Protocol):
    """Who has the simulator's model and data: a BatchedEnv."""

    def side_info(self) -> dict[str, Any]:
        """For a batched reward: fields of `mj_data` are (N, ...)."""
        ...

    def row_side_info(self, i: int) -> dict[str, Any]:
        """For one environment: real `mj_model` and `mj_data`."""
        ...


class RewardRunner:
    """Turns transitions of N environments into rewards and terms, all checked.

    `batched`: one reward object sees (N, ...) arrays, in one call. Otherwise every environment has
    a reward object of its own, which sees single transitions. `decide_batched` tells whether the
    first is safe. `stateful` is read off the source and may err on the side of True.
    """

    def __init__(
        self,
        code: str,
        num_envs: int,
        *,
        batched: bool,
        engine: str = "mujoco",
        name: str = DEFAULT_NAME,
    ) -> None:
        self.num_envs = num_envs
        self.batched = batched
        self._given = (code, engine, name)
        self._source = parse_source(code, engine, name=name)
        self._calls: list[CheckedReward] = []
        self.restart()
        self.spec: RewardSpec = spec_of(self._calls[0].reward)
        self.stateful = self._source.stateful or self._calls[0].has_reset

    @property
    def term_names(self) -> tuple[str, ...]:
        """The terms, in the order the reward returns them; empty before the first call."""
        return self._calls[0].names or ()

    @property
    def has_reset(self) -> bool:
        """Whether the reward is told of new episodes, apart from `_episode_start`."""
        return self._calls[0].has_reset

    def restart(self) -> None:
        """Make fresh reward objects, by executing the source again."""
        self._calls = [
            CheckedReward(
                self._source.build(),
                row=None if self.batched else i,
                file=self._source.name,
                before_traceback=self._source.remember_lines,
            )
            for i in range(1 if self.batched else self.num_envs)
        ]

    def another(self) -> RewardRunner:
        """A runner like this one, with reward objects of its own."""
        code, engine, name = self._given
        return RewardRunner(code, self.num_envs, batched=self.batched, engine=engine, name=name)

    def count(self, steps: int) -> None:
        """Let steps count, in the messages of errors, that were rewarded elsewhere."""
        for call in self._calls:
            call.step += steps

    def __call__(
        self,
        obs: Floats,
        action: np.ndarray[Any, Any],
        next_obs: Floats,
        info: Mapping[str, Any],
        *,
        episode_start: Rows,
        side_info: SideInfoSource | None = None,
    ) -> tuple[Floats, dict[str, Floats]]:
        """Reward (N,) and terms {name: (N,)} of one transition in each environment.

        `episode_start` marks the rows whose transition is the first of its episode. A batched
        reward may be given the rows of several steps. Raises RewardError.
        """
        if self.batched:
            given = info if side_info is None else {**info, **side_info.side_info()}
            values = self._calls[0].batch(obs, action, next_obs, given, episode_start)
        else:
            values = self._each((obs, action, next_obs), info, episode_start, side_info)
        names = self._calls[0].names or ()
        return values[0], dict(zip(names, values[1:], strict=True))

    def _each(
        self,
        arrays: tuple[Floats, np.ndarray[Any, Any], Floats],
        info: Mapping[str, Any],
        episode_start: Rows,
        source: SideInfoSource | None,
    ) -> Floats:
        obs, action, next_obs = arrays
        starts = episode_start.tolist()
        rows = []
        for i, call in enumerate(self._calls):
            if call.names is None:
                call.names = self._calls[0].names
            given = {key: value[i] for key, value in info.items()}
            if source is not None:
                given.update(source.row_side_info(i))
            rows.append(call.single(obs[i], action[i], next_obs[i], given, starts[i]))
        return np.array(rows).T.copy()


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
    single = RewardRunner(code, rows, batched=False, engine=engine, name=name)
    batch = RewardRunner(code, env.num_envs, batched=True, engine=engine, name=name)
    reason = "" if env.num_envs > 1 else "with one environment there is nothing to batch"
    scale: dict[str, float] = {}
    source = env if side_info else None
    for step, transition in enumerate(transitions(env, steps, seed)):
        expected = _rewarded(single, transition.first(rows), source)
        if not reason:
            try:
                given = _rewarded(batch, transition, source)
            except RewardError as error:
                reason = f"on a batch: {str(error).splitlines()[0]}"
            else:
                reason = _difference(expected, given, scale, step)
    return not reason, reason


def _rewarded(
    runner: RewardRunner, t: Transition, source: SideInfoSource | None
) -> dict[str, Floats]:
    total, terms = runner(
        t.obs, t.action, t.next_obs, t.info, episode_start=t.episode_start, side_info=source
    )
    return {**terms, "": total}


def _difference(
    expected: dict[str, Floats], given: dict[str, Floats], scale: dict[str, float], step: int
) -> str:
    """Where batch and single differ by more than the order of float32 sums can explain."""
    if expected.keys() != given.keys():
        return f"the terms are {', '.join(given)} on a batch, {', '.join(expected)} on one"
    for name, alone in expected.items():
        together = given[name][: len(alone)]
        scale[name] = max(scale.get(name, 0.0), float(np.abs(alone).max()))
        wrong = np.abs(alone - together) > FLOAT32_ORDER * scale[name] + 1e-9
        if wrong.any():
            row = int(wrong.argmax())
            return (
                f"{name or 'the total'} at step {step} in environment {row} is {alone[row]:.6g} "
                f"alone but {together[row]:.6g} in a batch"
            )
    return ""
