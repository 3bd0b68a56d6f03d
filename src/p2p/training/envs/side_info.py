"""The states a transition reached, as a reward reads them: MjData's fields for N rows.

A reward sees the last state of an episode, not the first of the next. So rows that end are
copied before their reset. Where no MjData are kept (BatchEngine), the first request replays the
transition from the states it began in, which gives the same bits, and continues with a RowEngine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np

from p2p.training.envs.batch_data import BatchData
from p2p.training.envs.mujoco_engines import FULL_STATE, BatchEngine, RowEngine
from p2p.training.trajectory import ENGINE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p2p.training.envs.batched_env import Array, Bools


class ReachedStates:
    """Side information of the transition just made, as Gymnasium's own MjData shows it.

    `rows` are the MjData that are stepped.
    """

    def __init__(self, model: mujoco.MjModel, rows: Sequence[mujoco.MjData]) -> None:
        self._model, self._rows = model, rows
        self._ended: dict[int, mujoco.MjData] = {}
        self._spare: list[mujoco.MjData] = []  # making one is expensive, so they are used again
        self._fields: dict[str, Array] = {}
        self._views: dict[str, list[Array]] = {}
        self._batch_data: BatchData | None = None

    def side_info(self) -> dict[str, Any]:
        """For a batched reward: fields of ``mj_data`` are (N, ...), and ended rows show their end.

        As with Gymnasium's own MjData, what follows from a state (xpos, cvel, ...) is that of the
        last physics substep's beginning.
        """
        if self._batch_data is None:
            self._batch_data = BatchData(self._model, self.field)
        return {"mj_model": self._model, "mj_data": self._batch_data}

    def row_side_info(self, i: int) -> dict[str, Any]:
        """For one row: the very MjData that is simulated, to be read, good until the next step."""
        return {"mj_model": self._model, "mj_data": self.row(i)}

    def trajectory_fields(self) -> dict[str, Array]:
        return {name: self.field(name) for name in ENGINE_COLUMNS}

    def begin_step(self) -> None:
        """The rows are about to step."""
        self.begin_rows(list(self._ended))

    def end_rows(self, ids: Sequence[int]) -> None:
        """These rows have ended and are about to be reset."""
        for i in ids:
            final = self._spare.pop() if self._spare else mujoco.MjData(self._model)
            mujoco.mj_copyData(final, self._model, self._rows[i])
            self._ended[i] = final

    def begin_rows(self, ids: Sequence[int]) -> None:
        """These rows show their present states again, restarted or not."""
        self._spare += [self._ended.pop(i) for i in ids if i in self._ended]
        self._fields = {}

    def row(self, i: int) -> mujoco.MjData:
        """A real MjData of row i; it changes with the next step."""
        return self._ended[i] if i in self._ended else self._rows[i]

    def field(self, name: str) -> Array:
        """One MjData field of all rows, (N, ...), read-only and never written again."""
        if name not in self._fields:
            array = self._collect(name)
            for i, final in self._ended.items():
                array[i] = getattr(final, name)
            array.flags.writeable = False
            self._fields[name] = array
        return self._fields[name]

    def _collect(self, name: str) -> Array:
        shape = np.shape(getattr(self._rows[0], name))
        if not shape:
            return np.array([getattr(data, name) for data in self._rows])
        # An MjData's arrays keep their place in memory, so views are taken only once.
        if name not in self._views:
            self._views[name] = [getattr(data, name).reshape(-1) for data in self._rows]
        return np.concatenate(self._views[name]).reshape(len(self._rows), *shape)


def replay(
    engine: BatchEngine, stepped: Bools, ended: list[int], substeps: int
) -> tuple[RowEngine, ReachedStates]:
    """Continue with a RowEngine, and show the transition that a BatchEngine has just made.

    `stepped` rows took part in its last step and were not restarted since; those of them that ended
    with it and were reset are `ended`.
    """
    states = engine.states()
    rows = RowEngine(engine.model, engine.num_rows, engine.num_threads, tuple(engine.fields))
    rows.load(states)
    for i in np.flatnonzero(stepped).tolist():
        data = rows.data[i]
        mujoco.mj_resetData(rows.model, data)
        mujoco.mj_setState(rows.model, data, engine.started[i], FULL_STATE)
        mujoco.mj_step(rows.model, data, substeps)
        mujoco.mj_rnePostConstraint(rows.model, data)
    reached = ReachedStates(rows.model, rows.data)
    reached.end_rows(ended)
    for i in ended:
        mujoco.mj_setState(rows.model, rows.data[i], states[i], FULL_STATE)
    return rows, reached
