"""Finds out what each number of an observation is, by experiment.

The environment's own observation code is shown made-up states in which every number of the
simulator's state is random, so that each observed number points to one place and to the range it
is clipped to. Real steps then have to agree. An environment whose observation code cannot be
called alone is judged by its real steps only.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from p2p.training.specs.records import ObservationEntry
from p2p.training.specs.state_fields import Library, scramble

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from p2p.training.specs.records import OpenRange

MADE_UP_STATES = 64
REAL_STEPS = 200
RELATIVE_TOLERANCE = 1e-6
"""Observations may be cast to float32."""
ABSOLUTE_TOLERANCE = 1e-9
ENOUGH_DISTINCT_VALUES = 8
"""Fewer different values than this do not identify a number."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Observations (S, D), and every quantity of the states that they were made from (S, C)."""

    observations: NDArray[np.float64]
    values: NDArray[np.float64]


def made_up_samples(env: Any, library: Library, rng: np.random.Generator) -> Samples | None:
    """Observations of random states; None where the environment offers no way to ask for them."""
    base = env.unwrapped
    observe = getattr(base, "_get_obs", None)
    if observe is None or inspect.signature(observe).parameters:
        return None
    observations, snapshots = [], []
    # Small states show where a number comes from, large ones whether it is clipped.
    for scale in np.geomspace(0.01, 1e3, MADE_UP_STATES):
        scramble(base.data, rng, float(scale))
        try:
            observation = observe()
        except (ArithmeticError, LookupError, TypeError, ValueError):
            return None  # an impossible state is no fault of the environment
        observations.append(np.array(observation, dtype=float))
        snapshots.append(library.snapshot(base.data))
    if observations[0].shape != env.observation_space.shape:
        return None  # a wrapper makes something else of it
    return Samples(np.stack(observations), library.values(np.stack(snapshots)))


def real_samples(env: Any, library: Library, seed: int) -> Samples:
    """Observations of random play."""
    env.action_space.seed(seed)
    env.reset(seed=seed)
    observations, snapshots = [], []
    for _ in range(REAL_STEPS):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        observations.append(np.array(observation, dtype=float))
        snapshots.append(library.snapshot(env.unwrapped.data))
        if terminated or truncated:
            env.reset()
    return Samples(np.stack(observations), library.values(np.stack(snapshots)))


def _close(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.bool_]:
    near = np.isclose(a, b, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE)
    return np.asarray(near.all(axis=0))


def match(samples: Samples, index: int) -> tuple[int, OpenRange] | None:
    """The first quantity that explains an observed number, and the range it is clipped to."""
    observed = samples.observations[:, index, None]
    low, high = float(observed.min()), float(observed.max())
    inside = (samples.values > low) & (samples.values < high)
    explains = _close(np.clip(samples.values, low, high), observed)
    explains &= inside.sum(axis=0) >= ENOUGH_DISTINCT_VALUES
    if not explains.any():
        return None
    column = int(np.argmax(explains))
    values = samples.values[:, column]
    margin = RELATIVE_TOLERANCE * max(abs(low), abs(high)) + ABSOLUTE_TOLERANCE
    return column, (
        low if values.min() < low - margin else None,
        high if values.max() > high + margin else None,
    )


def _confirmed(column: int, clip: OpenRange, index: int, real: Samples) -> bool:
    low, high = (-np.inf if clip[0] is None else clip[0]), (np.inf if clip[1] is None else clip[1])
    expected = np.clip(real.values[:, column], low, high)
    return bool(_close(expected, real.observations[:, index]))


def _unidentified(index: int, real: Samples) -> ObservationEntry:
    seen = real.observations[:, index]
    return ObservationEntry(
        index=index,
        name=f"obs[{index}]",
        source=None,
        description=f"not identified; between {seen.min():.4g} and {seen.max():.4g} in random play",
    )


def read_layout(
    made_up: Samples | None, real: Samples, library: Library
) -> tuple[ObservationEntry, ...]:
    """Every entry of the observation, in order."""
    entries = []
    for index in range(real.observations.shape[1]):
        found = match(made_up or real, index)
        if found is None or not _confirmed(*found, index, real):
            entries.append(_unidentified(index, real))
            continue
        quantity, clip = library.quantities[found[0]], found[1]
        entries.append(
            ObservationEntry(
                index=index,
                name=quantity.name,
                source=quantity.source,
                unit=quantity.unit,
                description=quantity.description,
                clip=None if clip == (None, None) else clip,
            )
        )
    return tuple(entries)
