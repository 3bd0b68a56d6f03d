"""What an environment observes, moves and means: `get_env_spec("HalfCheetah-v5")`.

Every fact is read off the live environment, for Gymnasium's own and for registered ones alike; an
id such as `my_package:MyEnv-v0` imports `my_package` first. A physics engine is a SimulatorBackend;
one that simulates in batches on a GPU implements the same protocol, and adding one is a file and a
line in ENGINES.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol

from p2p.config import TrainConfig, engine_of
from p2p.contracts import Record
from p2p.training.engines.table import is_engine
from p2p.training.envs.registry import UnknownEnvironmentError, find_spec

if TYPE_CHECKING:
    from collections.abc import Mapping


Vec3 = tuple[float, float, float]
Range = tuple[float, float]
OpenRange = tuple[float | None, float | None]
"""None: no bound on that side."""

TIME = "steps / max_episode_steps"
"""The source of the observation's last number, where the policy observes the time."""


class ObservationEntry(Record):
    """One number of the observation."""

    index: int
    name: str
    """Unique within the environment; `obs[i]` when the entry could not be identified."""
    source: str | None
    """Where the number comes from, as an expression over the simulator's state
    (`qpos[3]`, `sin(qpos[1])`, `cfrc_ext[1, 4]`); None: not identified."""
    unit: str = ""
    description: str = ""
    clip: OpenRange | None = None
    """The environment clips the number to this range."""


class ActionEntry(Record):
    """One number of the action: an actuator."""

    index: int
    name: str
    joint: str | None
    """The joint it drives; None when it drives something else (a tendon, a site)."""
    moves: tuple[str, ...] = ()
    """The joints that it pulls on in the start pose, through whatever it drives."""
    kind: str
    """torque, force, position servo, ..."""
    low: float | None
    high: float | None
    """Bounds of the action space; None: unbounded."""
    gear: float
    unit: str
    description: str


class JointEntry(Record):
    """A joint, with its place in qpos and qvel."""

    id: int
    name: str
    type: Literal["free", "ball", "slide", "hinge"]
    body: str
    """The body that the joint moves."""
    parent: str
    axis: Vec3 | None
    """In world coordinates, in the resting pose; None for free and ball joints."""
    anchor: Vec3
    """A point on its axis, in world coordinates, in the resting pose."""
    range: Range | None
    """None: not limited."""
    unit: str
    rest: tuple[float, ...]
    """Its part of qpos in the resting pose."""
    start: tuple[float, ...] = ()
    """Its part of qpos where episodes begin, but for noise."""
    lever: Vec3 = (0.0, 0.0, 0.0)
    """From its anchor to the middle of the mass that it moves, in the resting pose."""
    qpos_address: int
    qpos_size: int
    qvel_address: int
    qvel_size: int
    sign: str
    """In words: what a positive change does, from the resting pose."""
    rotation: str = ""
    """Hinges only: the axis and sense of a positive turn, in words."""
    height_offset: float | None = None
    """Vertical slides only: world height of the body minus this joint's qpos."""
    stiffness: float = 0.0
    """Of a spring that pulls it to `spring_rest`; N m/rad, slides N/m."""
    spring_rest: float = 0.0
    damping: float = 0.0
    """Torque (slides: force) against each rad/s (m/s)."""
    armature: float = 0.0
    """Inertia of its drive: kg m^2, slides kg."""


class BodyEntry(Record):
    """A body of the tree; id 0 is the world."""

    id: int
    name: str
    parent: int
    mass: float
    rest_position: Vec3
    """World coordinates in the resting pose."""
    offset: Vec3
    """From the parent's frame."""
    centre: Vec3
    """Of its mass, in its own frame."""


class GeomEntry(Record):
    id: int
    name: str
    type: str
    size: tuple[float, ...]
    """Only the numbers that its type uses (metres)."""
    body: str
    position: Vec3
    """In the frame of its body."""
    axis: Vec3
    """Its own z axis, along which capsules and cylinders lie, in the frame of its body."""
    collides: bool


class QuantityEntry(Record):
    """A named quantity, as a reward finds it in `info` and a judge in a trajectory."""

    unit: str
    axes: tuple[Literal["feet", "bodies", "xyz"], ...]
    """What is counted along each axis; none: one number."""
    shape: tuple[int, ...]
    """Of one step."""
    meaning: str


class FootEntry(Record):
    """A body that the robot stands on."""

    name: str
    body: int
    lowest_point: Vec3
    """In world coordinates, in the resting pose."""


class CameraEntry(Record):
    """Where videos of the environment are seen from."""

    azimuth: float
    elevation: float
    distance: float
    lookat: Vec3
    track_body: str | None
    """The body to keep in view; None: the scene stays where it is."""


class EnvSpec(Record):
    """Everything a reward author has to know about an environment."""

    env_id: str
    name: str
    engine: str
    description: str
    observation: tuple[ObservationEntry, ...]
    actions: tuple[ActionEntry, ...]
    joints: tuple[JointEntry, ...]
    bodies: tuple[BodyEntry, ...]
    geoms: tuple[GeomEntry, ...]
    camera: CameraEntry
    info_keys: dict[str, str]
    """Keys of `info` after a step, with what they mean."""
    feet: tuple[FootEntry, ...]
    """In the order of the quantities of feet."""
    supports: tuple[int, ...] = ()
    """Bodies that touch the ground where an episode begins, feet among them."""
    quantities: dict[str, QuantityEntry]
    """What can be measured of every step, by name; with `side_info` also in `info`."""
    dt: float
    """Seconds between two actions."""
    frame_skip: int
    """Physics steps between two actions."""
    max_episode_steps: int | None
    """The registered horizon; None: no limit."""
    terminate_when_unhealthy: bool | None
    """None: the environment has no such switch."""
    healthy_ranges: dict[str, OpenRange]
    termination: str
    """In words: what ends an episode early."""
    total_mass: float
    gravity: Vec3
    fluid: tuple[float, float] = (0.0, 0.0)
    """Density (kg/m^3) and viscosity (Pa s) of what it moves in; zeros: nothing."""
    uses_quaternion_orientation: bool
    z_height_qpos_idx: int | None
    """Where qpos holds the torso's height."""
    torso_angle_qpos_idx: int | None
    """Where qpos holds a planar torso's angle; None for free bodies and fixed bases."""
    torso_angvel_qvel_idx: int | None

    def with_time(self) -> EnvSpec:
        """Return the spec of a policy that observes the time (`observe_time` of TrainConfig)."""
        time = ObservationEntry(
            index=self.obs_dim,
            name="time",
            source=TIME,
            description="share of the episode that has passed, from 0 at its start to 1 at its "
            "time limit; steps / max_episode_steps",
        )
        return self.model_copy(update={"observation": (*self.observation, time)})

    @property
    def obs_dim(self) -> int:
        return len(self.observation)

    @property
    def action_dim(self) -> int:
        return len(self.actions)


class UnsupportedEnvironmentError(ValueError):
    """The environment exists, but this engine cannot describe it."""


class SimulatorBackend(Protocol):
    """What training and prompts need of a physics engine."""

    engine_name: str

    def read_spec(self, env_id: str) -> EnvSpec:
        """Read everything off a live environment (use `get_env_spec`, which caches)."""

    def extract_side_info(self, env: Any) -> dict[str, Any]:
        """The simulator's live state, as a reward finds it in `info`."""

    def reward_namespace(self) -> dict[str, Any]:
        """The engine's own modules, which reward code may use without importing them."""


ENGINES: Mapping[str, str] = {
    "mujoco": "p2p.training.specs.mujoco_backend:MujocoBackend",
    "isaaclab": "p2p.training.engines.facts:IsaacLabBackend",
    "mjlab": "p2p.training.engines.facts:MjlabBackend",
}
"""Engine to the class of its backend, imported when it is asked for."""


@cache
def get_simulator(engine: str = "mujoco") -> SimulatorBackend:
    """The backend of an engine, one per process; ValueError for an unknown one."""
    if engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}; known: {', '.join(sorted(ENGINES))}")
    module, _, name = ENGINES[engine].partition(":")
    backend: SimulatorBackend = getattr(import_module(module), name)()
    return backend


__all__ = [
    "EnvSpec",
    "UnknownEnvironmentError",
    "UnsupportedEnvironmentError",
    "get_env_spec",
    "get_spec_by_name",
    "list_env_ids",
    "max_steps_for_duration",
    "spec_for",
]

_GYMNASIUM = "gymnasium.envs.mujoco."


def _is_mujoco(entry_point: object) -> bool:
    """Return whether an entry point makes a MuJoCo environment; imports nothing to find out."""
    from gymnasium.envs.mujoco import MujocoEnv

    if isinstance(entry_point, str):
        module, _, attribute = entry_point.partition(":")
        entry_point = getattr(sys.modules.get(module), attribute, None)
    return isinstance(entry_point, type) and issubclass(entry_point, MujocoEnv)


@cache
def gymnasium_env_ids() -> tuple[str, ...]:
    import gymnasium as gym

    newest: dict[str, int] = {}
    for spec in gym.registry.values():
        if isinstance(spec.entry_point, str) and spec.entry_point.startswith(_GYMNASIUM):
            newest[spec.name] = max(newest.get(spec.name, 0), spec.version or 0)
    return tuple(f"{name}-v{version}" for name, version in sorted(newest.items()))


def list_env_ids() -> tuple[str, ...]:
    """Gymnasium's MuJoCo environments in their newest version, then those registered by users."""
    import gymnasium as gym

    own = tuple(
        env_id
        for env_id, spec in gym.registry.items()
        if not str(spec.entry_point).startswith(_GYMNASIUM) and _is_mujoco(spec.entry_point)
    )
    return (*gymnasium_env_ids(), *sorted(own))


@cache
def get_env_spec(env_id: str, engine: str | None = None) -> EnvSpec:
    """The environment's facts, read once per process.

    Raises UnknownEnvironmentError for an id that is not registered, and
    UnsupportedEnvironmentError for one whose simulator or spaces the engine cannot describe. An
    engine that is installed beside this package starts for the first reading, which takes minutes;
    EngineMissing says how to install it.
    """
    engine = engine or engine_of(env_id)
    if not is_engine(engine):
        find_spec(env_id, list_env_ids())
    return get_simulator(engine).read_spec(env_id)


def spec_for(config: TrainConfig) -> EnvSpec:
    """The facts of a configuration's environment, with the time where its policy observes that."""
    spec = get_env_spec(config.env_id, config.engine)
    return spec.with_time() if config.observe_time else spec


def get_spec_by_name(name: str) -> EnvSpec:
    """Look up by id or by display name: `HalfCheetah-v5`, `HalfCheetah`, `half cheetah`."""
    wanted = name.lower().replace(" ", "").replace("_", "")
    for env_id in list_env_ids():
        if wanted in (env_id.lower(), env_id.rpartition("-v")[0].lower()):
            return get_env_spec(env_id)
    return get_env_spec(name)


def max_steps_for_duration(env_id: str, seconds: float) -> int:
    """Return how many steps last this long; at least one."""
    return max(1, round(seconds / get_env_spec(env_id).dt))
