"""Rewarding several steps in one call, where that makes no difference to the reward.

A step of eight environments costs a reward little more than its numpy calls, and those cost
twice as much right after the physics as they do in a row. A reward that takes a batch and keeps
no state cannot tell whether its rows are of one step or of many, so it may as well be called
once for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from p2p.training.reward_function import RewardError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from p2p.training.reward.calls import Floats
    from p2p.training.reward.runner import RewardRunner, SideInfoSource
    from p2p.training.reward_function import Rows

ROWS_AT_ONCE = 512
"""Enough that the cost of a call no longer counts; few enough to stay in the cache."""
ROUNDING = 1e-6
"""Actions are float32: sums over them may differ by this much of a value's largest."""


class RewardStep(NamedTuple):
    """One step of N environments, as RewardRunner takes it; the arrays must stay as they are."""

    obs: Floats
    action: NDArray[np.float32]
    next_obs: Floats
    info: Mapping[str, Any]
    episode_start: Rows


class RewardBlocks:
    """A RewardRunner for several steps at a time.

    The first block is rewarded both ways, the steps one by one and all in one call of a second
    reward object. If that makes a difference (state that its source does not show), it
    stays with single steps. So it does for rewards that are called per environment, that keep
    state, or that look at the simulator.
    """

    def __init__(self, runner: RewardRunner, side_info: SideInfoSource | None = None) -> None:
        self.steps = 1
        """How many steps to gather for a call."""
        self._runner = runner
        self._side_info = side_info
        self._together: RewardRunner | None = None
        self._compared = False
        if runner.batched and not runner.stateful and side_info is None:
            self.steps = max(1, ROWS_AT_ONCE // runner.num_envs)
        if self.steps > 1:
            self._together = runner.another()

    def __call__(self, steps: Sequence[RewardStep]) -> tuple[Floats, dict[str, Floats]]:
        """Rewards (K, N) and terms {name: (K, N)}; raises RewardError, at the step to blame."""
        if self._together is None or len(steps) == 1:
            return self._one_by_one(steps)
        try:
            block = self._together_values(self._together, steps)
        except RewardError:
            block = None
        if block is not None and self._compared:
            self._runner.count(len(steps))
            return block
        # The first block; or one that failed, whose steps now show which of them is to blame.
        single = self._one_by_one(steps)
        if block is not None and _alike(single, block):
            self._compared = True
            return block
        self._together, self.steps = None, 1
        return single

    def _one_by_one(self, steps: Sequence[RewardStep]) -> tuple[Floats, dict[str, Floats]]:
        found = [
            self._runner(
                step.obs,
                step.action,
                step.next_obs,
                step.info,
                episode_start=step.episode_start,
                side_info=self._side_info,
            )
            for step in steps
        ]
        if len(found) == 1:
            total, terms = found[0]
            return total[None], {name: values[None] for name, values in terms.items()}
        names = self._runner.term_names
        return (
            np.stack([total for total, _ in found]),
            {name: np.stack([terms[name] for _, terms in found]) for name in names},
        )

    @staticmethod
    def _together_values(
        runner: RewardRunner, steps: Sequence[RewardStep]
    ) -> tuple[Floats, dict[str, Floats]] | None:
        """None if the steps cannot be put together, because their info differs in its keys."""
        keys = steps[0].info.keys()
        if any(step.info.keys() != keys for step in steps):
            return None
        total, terms = runner(
            np.concatenate([step.obs for step in steps]),
            np.concatenate([step.action for step in steps]),
            np.concatenate([step.next_obs for step in steps]),
            {key: np.concatenate([step.info[key] for step in steps]) for key in keys},
            episode_start=np.concatenate([step.episode_start for step in steps]),
        )
        shape = (len(steps), -1)
        return total.reshape(shape), {name: x.reshape(shape) for name, x in terms.items()}


def _alike(one: tuple[Floats, dict[str, Floats]], other: tuple[Floats, dict[str, Floats]]) -> bool:
    (total, terms), (other_total, other_terms) = one, other
    return terms.keys() == other_terms.keys() and all(
        np.allclose(a, b, rtol=0.0, atol=ROUNDING * float(np.abs(a).max()) + 1e-9)
        for a, b in [(total, other_total), *((terms[k], other_terms[k]) for k in terms)]
    )
