"""What trainers, evaluation and checks step: many copies of one environment, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium.spaces import Box

F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]
Array = NDArray[Any]
Seeds = int | Sequence[int] | None
"""Of a reset: one for each row; a number n for n, n + 1, ...; None continues the generators."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One transition of every row. The environment never writes to these arrays again."""

    next_obs: F64
    """(N, D): the observation reached, before any auto-reset; what a reward sees."""
    obs: F64
    """(N, D): what the policy sees next: next_obs, or the first observation of a new episode."""
    reward: F64
    """(N,): the environment's own reward."""
    terminated: Bools
    truncated: Bools
    info: Mapping[str, Array]
    """Every info key of the environment for this transition, (N, ...) each, and the quantities
    that it was made with."""


class BatchedEnv(Protocol):
    """N environments stepped together; rows that end start anew in the same step."""

    env_id: str
    num_envs: int
    dt: float
    max_episode_steps: int
    single_observation_space: Box
    single_action_space: Box

    def reset_batch(self, seed: Seeds = None) -> F64:
        """Start every row anew."""

    def step_batch(self, action: Array) -> StepBatch:
        """Step every row with its action, (N, A), unclipped; auto-reset the rows that ended."""

    def restart(self, rows: Bools) -> F64:
        """Start new episodes in these rows; return the observations of all rows."""

    def side_info(self) -> dict[str, Any]:
        """``mj_model`` and ``mj_data`` of the transition just made, fields being (N, ...)."""

    def row_side_info(self, i: int) -> dict[str, Any]:
        """``mj_model`` and a real ``mj_data`` of row i, as it was when the transition ended."""

    def trajectory_fields(self) -> dict[str, Array]:
        """What a trajectory keeps of the states just reached, before any auto-reset."""

    def state_dict(self) -> dict[str, Array]:
        """Everything needed to continue exactly from here, as arrays."""

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Continue from where state_dict() was taken."""

    def close(self) -> None:
        """Free what is held."""


def row_seeds(seed: int, num_rows: int) -> list[int]:
    """Seeds of the rows in training, below 2**32: those of two runs have none in common."""
    rows = np.random.SeedSequence(seed).spawn(num_rows)
    return [int(row.generate_state(1)[0]) for row in rows]


def seeds_of_rows(seeds: Seeds, num_rows: int) -> Sequence[int | None]:
    """A seed for each row, as a reset is given them."""
    if seeds is None or isinstance(seeds, int | np.integer):
        return [None if seeds is None else int(seeds) + i for i in range(num_rows)]
    if len(seeds) != num_rows:
        raise ValueError(f"{len(seeds)} seeds for {num_rows} rows")
    return seeds


def trial_range(space: Box) -> tuple[Array, Array]:
    """Between what random actions are drawn: within bounds, and of size 1 where there are none."""
    low, high = np.asarray(space.low), np.asarray(space.high)
    return (
        np.where(np.isfinite(low), np.maximum(low, -1e3), -1.0),
        np.where(np.isfinite(high), np.minimum(high, 1e3), 1.0),
    )


def generator_to_array(rng: np.random.Generator) -> NDArray[np.uint64]:
    """A PCG64 generator's state as six words."""
    state = rng.bit_generator.state
    value, increment = state["state"]["state"], state["state"]["inc"]
    low = (1 << 64) - 1
    words = [value >> 64, value & low, increment >> 64, increment & low]
    return np.array([*words, state["has_uint32"], state["uinteger"]], dtype=np.uint64)


def generator_from_array(words: Array) -> np.random.Generator:
    """The generator whose state generator_to_array() took."""
    value_high, value_low, inc_high, inc_low, has_uint32, uinteger = (int(w) for w in words)
    bits = np.random.PCG64(0)
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": value_high << 64 | value_low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return np.random.Generator(bits)
