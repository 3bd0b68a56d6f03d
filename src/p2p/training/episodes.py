"""Episodes of the training rollouts: their returns, lengths and reward terms."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
