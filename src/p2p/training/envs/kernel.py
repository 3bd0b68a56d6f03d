"""What a batch needs of an environment beside its physics: see Kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from p2p.training.envs.batched_env import F64, Array, Bools

Outcome = tuple["F64", "Bools | None", "dict[str, Array]"]
"""Reward, terminated (None: this environment never terminates) and info of a transition."""


class EpisodeStarts:
    """Draws the first state of episodes by an environment's own reset_model(), without physics.

    The environment's set_state() and _get_obs() are replaced for it: the batch takes the state.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._state: tuple[F64, F64] | None = None
        env.set_state = self._keep
        env._get_obs = lambda: None  # noqa: SLF001

    def draw(self, rng: np.random.Generator) -> tuple[F64, F64]:
        """The qpos and qvel of a new episode."""
        self._env.np_random = rng
        self._env.reset_model()
        if self._state is None:
            raise RuntimeError(f"{type(self._env).__name__}.reset_model() did not set a state")
        state, self._state = self._state, None
        return state

    def _keep(self, qpos: F64, qvel: F64) -> None:
        self._state = (np.array(qpos), np.array(qvel))


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

    def bind(self, motion: F64, ctrl: F64, fields: dict[str, Array]) -> None:
        """Take live views of an engine's arrays, a row for each environment."""
        self.motion, self.ctrl, self.field = motion, ctrl, fields
        self.qpos, self.qvel = self.motion[:, : self.model.nq], self.motion[:, self.model.nq :]
        self.before = self.after = np.zeros((len(motion), 0))
        self.flat: dict[str, Array] = {
            name: array.reshape(len(array), array[0].size) for name, array in self.field.items()
        }

    def control(self, action: Array) -> Array:
        """Return what actuators are given for these actions, (N, nu)."""
        return action

    def begin(self, ids: Sequence[int]) -> None:
        """These rows have begun a new episode."""

    def landmark(self) -> F64:
        """Return what a transition compares before and after, of the present state: a new array."""
        return self.before

    def observe(self) -> F64:
        """The observations of all rows, as a new array."""
        raise NotImplementedError

    def transition(self, action: Array) -> Outcome:
        """Judge the transition that led to the present state, and set ``after``."""
        raise NotImplementedError
