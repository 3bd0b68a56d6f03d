"""What a Gymnasium MuJoCo environment computes from its simulation, for a whole batch at once.

Every number a kernel uses (weights, ranges, noise) is read from a live Gymnasium instance, and
sums are taken in Gymnasium's order and precision, so that results agree bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from p2p.training.envs.batched_env import F64, Array, Bools
    from p2p.training.envs.mujoco_engines import Engine

Outcome = tuple["F64", "Bools | None", "dict[str, Array]"]
"""Reward, terminated (None: this environment never terminates) and info of a transition."""


class Kernel:
    """The part all environments share; a subclass per environment adds its own."""

    derived: ClassVar[tuple[str, ...]] = ()
    """MjData fields beside the state that observation, info or reward read.

    ``cfrc_ext`` among them needs a RowEngine: a batch does not compute it.
    """

    def __init__(self, env: Any) -> None:
        self.model = env.model
        self.parameters: Mapping[str, Any] = {k: v for k, v in vars(env).items() if k[0] == "_"}
        self.dt = float(env.dt)
        self.init_qpos: F64 = env.init_qpos.copy()
        self.before: F64 = np.zeros((0, 0))
        """What the next transition compares with, a row each."""
        self.after: F64 = self.before
        """The same of the state that transition() has judged."""
        self._env = env
        self._drawn: tuple[F64, F64] | None = None
        # reset_model() then only draws: the batch takes the state, and no physics runs here.
        env.set_state = self._keep_draw
        env._get_obs = lambda: None  # noqa: SLF001

    def bind(self, engine: Engine) -> None:
        """Take live views of the engine's arrays."""
        self.motion, self.ctrl, self.field = engine.motion, engine.ctrl, engine.fields
        self.qpos, self.qvel = self.motion[:, : self.model.nq], self.motion[:, self.model.nq :]
        if len(self.before) != engine.num_rows:
            self.before = self.after = np.zeros((engine.num_rows, 0))
        self.flat: dict[str, Array] = {
            name: array.reshape(len(array), array[0].size) for name, array in self.field.items()
        }

    def draw(self, rng: np.random.Generator) -> tuple[F64, F64]:
        """Draw qpos and qvel of a new episode, by the environment's own reset_model()."""
        self._env.np_random = rng
        self._env.reset_model()
        if self._drawn is None:
            raise RuntimeError(f"{type(self._env).__name__}.reset_model() did not set a state")
        drawn, self._drawn = self._drawn, None
        return drawn

    def _keep_draw(self, qpos: F64, qvel: F64) -> None:
        self._drawn = (np.array(qpos), np.array(qvel))

    def landmark(self) -> F64:
        """What a transition compares before and after, of the present state: a new array."""
        return self.before

    def observe(self) -> F64:
        """The observations of all rows, as a new array."""
        raise NotImplementedError

    def transition(self, action: Array) -> Outcome:
        """Judge the transition that led to the present state, and set ``after``."""
        raise NotImplementedError

    def reset_info(self) -> dict[str, Array]:
        """What reset() reports beside the observation, for all rows."""
        return {}


def squared(values: Array) -> Array:
    """Sum of squares of every row, in the precision of the values and in numpy's own order."""
    total: Array = np.add.reduce(np.square(values), axis=1)
    return total


def norm(vectors: F64) -> F64:
    """Euclidean norm of every row; vecdot takes the dot product that np.linalg.norm takes."""
    lengths: F64 = np.sqrt(np.vecdot(vectors, vectors))
    return lengths


def inside(values: F64, low: F64, high: F64) -> Bools:
    """Whether every value of a row lies strictly between its bounds; NaN does not."""
    within: Bools = np.logical_and.reduce((low < values) & (values < high), axis=1)
    return within
