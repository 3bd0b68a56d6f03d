"""What trainers, evaluation and checks step: many copies of one environment, side by side.

And the states that a transition reached, as a reward reads them: MjData's fields for N rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import mujoco
import numpy as np
from numpy.typing import NDArray

from p2p.training.trajectory import ENGINE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
        """Return what a trajectory keeps of the states just reached, before any auto-reset."""

    def state_dict(self) -> dict[str, Array]:
        """Everything needed to continue exactly from here, as arrays."""

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Continue from where state_dict() was taken."""

    def close(self) -> None:
        """Release the resources."""


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


try:
    from mujoco.batch import DATA_FIELDS
except ImportError:  # an engine's MuJoCo is older
    _EMPTY = mujoco.MjData(mujoco.MjModel.from_xml_string("<mujoco/>"))
    DATA_FIELDS = frozenset(
        name
        for name in dir(_EMPTY)
        if not name.startswith("_") and isinstance(getattr(_EMPTY, name), np.ndarray)
    )

__all__ = ["DATA_FIELDS", "FULL_STATE", "BatchData", "ReachedStates"]

FULL_STATE = mujoco.mjtState.mjSTATE_INTEGRATION
Kind = Literal["actuator", "body", "camera", "geom", "joint", "light", "sensor", "site", "tendon"]


class ReachedStates:
    """Side information of the transition just made, as Gymnasium's own MjData shows it.

    A reward sees the last state of an episode, not the first of the next. So rows that end are
    copied before their reset. `rows` are the MjData that are stepped.
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
        """Return one MjData field of all rows, (N, ...), read-only and never written again."""
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


class BatchData:
    """What a batched reward gets as ``mj_data``: MjData's fields, (N, ...) each and read-only.

    Named access works as on MjData: ``mj_data.body("torso").xpos`` is (N, 3) and
    ``mj_data.joint("rootx").qpos`` is (N, 1). Contacts differ in number from row to row and
    have no batched form: a reward that reads them runs per environment.
    """

    def __init__(self, model: mujoco.MjModel, field: Callable[[str], Array]) -> None:
        self._field = field
        self._template = mujoco.MjData(model)

    def __getattr__(self, name: str) -> Array:
        if name in DATA_FIELDS:
            return self._field(name)
        hint = ""
        if hasattr(mujoco.MjData, name):
            hint = ": its size may differ from row to row; rewards run per environment can read it"
        raise AttributeError(f"batched mj_data has no {name!r}{hint}")

    def _make_view(self, kind: Kind, key: str | int) -> NamedView:
        return NamedView(self, kind, key, self._template)

    actuator = partialmethod(_make_view, "actuator")
    body = partialmethod(_make_view, "body")
    camera = partialmethod(_make_view, "camera")
    geom = partialmethod(_make_view, "geom")
    joint = partialmethod(_make_view, "joint")
    sensor = partialmethod(_make_view, "sensor")
    site = partialmethod(_make_view, "site")
    tendon = partialmethod(_make_view, "tendon")


class NamedView:
    """One object's slice of the batched fields."""

    def __init__(
        self, data: BatchData, kind: Kind, key: str | int, template: mujoco.MjData
    ) -> None:
        self._data, self._kind, self._template = data, kind, template
        self._view = getattr(template, kind)(key)
        self.id: int = self._view.id
        self.name: str = self._view.name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        view = getattr(self._view, name)
        prefixes = {"tendon": "ten_"}
        for field in (name, f"{prefixes.get(self._kind, f'{self._kind}_')}{name}", f"sensor{name}"):
            whole = getattr(self._template, field, None) if field in DATA_FIELDS else None
            # MjData's own named view tells where in the field the object lies.
            if isinstance(whole, np.ndarray) and np.may_share_memory(whole, view):
                start = (_address(view) - _address(whole)) // whole.itemsize
                rows = getattr(self._data, field)
                part = rows.reshape(len(rows), -1)[:, start : start + view.size]
                return part.reshape(len(rows), *view.shape)
        raise AttributeError(f"batched mj_data.{self._kind}(...) has no {name!r}")


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


# --- kernels --------------------------------------------------------------------------------------


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
