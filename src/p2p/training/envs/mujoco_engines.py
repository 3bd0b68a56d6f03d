"""Two ways to step N simulations of one model, with the same attributes and methods.

``BatchEngine`` is ``mujoco.batch``: C++ threads, and the faster where bound fields suffice.
``RowEngine`` keeps a real MjData per row, exactly as Gymnasium does. It serves what a batch
does not give: mj_rnePostConstraint after every step, without which cfrc_ext is missing, and an
MjData to show without copying it. The state runs on bit for bit from one to the other.

The arrays are live and keep their place in memory: `motion` (N, nq + nv) and `fields`, the MjData
fields that were asked for, (N, ...) each, are to read; `ctrl` (N, nu) is to write before step().
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import mujoco
import numpy as np
from mujoco.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p2p.training.envs.batched_env import F64, Array

FULL_STATE = mujoco.mjtState.mjSTATE_INTEGRATION


class BatchEngine:
    """``mujoco.batch.Batch``; MjData are the batch's own."""

    def __init__(
        self, model: mujoco.MjModel, num_rows: int, num_threads: int, fields: Sequence[str]
    ) -> None:
        self.model, self.num_rows, self.num_threads = model, num_rows, num_threads
        self._batch = batch = Batch(model, num_rows, num_threads)
        # Rows are (time, qpos, qvel, ...), so one slice holds all of the motion.
        self.motion: F64 = batch.state[:, 1 : 1 + model.nq + model.nv]
        self.ctrl: F64 = batch.bind("ctrl")
        self.fields: dict[str, Array] = {name: batch.bind(name) for name in fields}
        self._default: F64 = np.zeros(batch.nstate)
        mujoco.mj_getState(model, mujoco.MjData(model), self._default, FULL_STATE)
        self.started: F64 = batch.state.copy()
        """The states in which the last step began, for a replay."""

    def step(self, substeps: int) -> None:
        """Advance every row; as with mj_step, fields stay one substep behind the motion."""
        np.copyto(self.started, self._batch.state)
        self._batch.step(nstep=substeps)

    def begin(self, ids: Sequence[int], qpos: Sequence[F64], qvel: Sequence[F64]) -> None:
        """Reset these rows, give them a state, and compute what follows from it."""
        nq, states, motion = self.model.nq, self._batch.state, self.motion
        for i, position, velocity in zip(ids, qpos, qvel, strict=True):
            # Rows hold all there is, so this is a reset, for less than Batch.reset() costs.
            states[i] = self._default
            motion[i, :nq], motion[i, nq:] = position, velocity
        self._batch.forward(np.array(ids, dtype=np.int32))

    def states(self) -> F64:
        """The full physics state of every row, as a new array."""
        states: F64 = self._batch.state.copy()
        return states

    def load(self, states: Array) -> None:
        """Take over full physics states; fields are unspecified until the next step."""
        self._batch.state[:] = states

    def close(self) -> None:
        """Nothing to end: the batch's threads end with it."""


class RowEngine:
    """A real MjData per row, stepped in Python threads; physics runs without the lock."""

    def __init__(
        self, model: mujoco.MjModel, num_rows: int, num_threads: int, fields: Sequence[str]
    ) -> None:
        self.model, self.num_rows, self.num_threads = model, num_rows, num_threads
        self.data = [mujoco.MjData(model) for _ in range(num_rows)]
        self.ctrl: F64 = np.zeros((num_rows, model.nu))
        self._pool = ThreadPoolExecutor(num_threads - 1) if num_threads > 1 else None
        # All that is read of a row is gathered into one block, while it is still in the cache.
        names = ("qpos", "qvel", *fields)
        self._parts = [[getattr(data, name).reshape(-1) for name in names] for data in self.data]
        block: F64 = np.zeros((num_rows, sum(part.size for part in self._parts[0])))
        self._block_rows = list(block)
        self.motion: F64 = block[:, : model.nq + model.nv]
        self.fields: dict[str, Array] = {}
        start = model.nq + model.nv
        for name in fields:
            shape = getattr(self.data[0], name).shape
            columns = block[:, start : start + int(np.prod(shape))]
            self.fields[name] = columns.reshape(num_rows, *shape)
            start += columns.shape[1]

    def step(self, substeps: int) -> None:
        """Advance every row, then compute forces, as Gymnasium does."""
        if self._pool is None:
            self._step(range(self.num_rows), substeps)
            return
        rows, threads = range(self.num_rows), self.num_threads
        jobs = [
            self._pool.submit(self._step, rows[k::threads], substeps) for k in range(1, threads)
        ]
        self._step(rows[::threads], substeps)
        for job in jobs:
            job.result()

    def _step(self, ids: Sequence[int], substeps: int) -> None:
        model, step, rne = self.model, mujoco.mj_step, mujoco.mj_rnePostConstraint
        for i in ids:
            data = self.data[i]
            data.ctrl[:] = self.ctrl[i]
            step(model, data, substeps)
            rne(model, data)
            self._gather(i)

    def begin(self, ids: Sequence[int], qpos: Sequence[F64], qvel: Sequence[F64]) -> None:
        for i, position, velocity in zip(ids, qpos, qvel, strict=True):
            data = self.data[i]
            mujoco.mj_resetData(self.model, data)
            data.qpos[:] = position
            data.qvel[:] = velocity
            mujoco.mj_forward(self.model, data)
            self._gather(i)

    def states(self) -> F64:
        states: F64 = np.zeros((self.num_rows, mujoco.mj_stateSize(self.model, FULL_STATE)))
        for data, state in zip(self.data, states, strict=True):
            mujoco.mj_getState(self.model, data, state, FULL_STATE)
        return states

    def load(self, states: Array) -> None:
        """Take over full physics states; fields are those that mj_forward computes."""
        for i, (data, state) in enumerate(zip(self.data, states, strict=True)):
            mujoco.mj_resetData(self.model, data)
            mujoco.mj_setState(self.model, data, state, FULL_STATE)
            mujoco.mj_forward(self.model, data)
            # mj_forward wrote a new warm start; the next step must find the old one.
            mujoco.mj_setState(self.model, data, state, FULL_STATE)
            self._gather(i)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _gather(self, i: int) -> None:
        np.concatenate(self._parts[i], out=self._block_rows[i])


PhysicsEngine = BatchEngine | RowEngine
