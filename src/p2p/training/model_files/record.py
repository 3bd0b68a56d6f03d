"""What an environment from a model file is: one record, inferred once and kept with the model."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field

from p2p.contracts import Record

Axis = Literal["+x", "-x", "+y", "-y"]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class Servo(Record):
    """A servo that was added, for a joint of a model without actuators."""

    joint: Name
    kind: Literal["position", "velocity"] = "position"
    stiffness: float
    """N m/rad (slides N/m); of a velocity servo N m s/rad."""
    damping: float
    armature: float
    """Inertia of the drive, which keeps it stable at the time step."""
    effort: float | None
    """The most torque or force; None: no limit."""
    low: float
    high: float
    """Of the target."""


class Ends(Record):
    """What ends an episode; None: nothing of the kind."""

    height: tuple[float | None, float | None] | None = None
    """The trunk's height must stay above the first and below the second, in metres."""
    tilt: Annotated[float, Field(gt=0, le=3.2)] | None = None
    """The trunk may lean so far from how it starts, in radians."""


class StartOptions(Record):
    """Where episodes begin; what is left open is inferred."""

    key: Name | None = None
    """The key frame to begin with."""
    joints: dict[Name, float] = Field(default_factory=dict)
    """Angles and positions, over those of the key frame or the model."""
    ranges: dict[Name, tuple[float, float]] = Field(default_factory=dict)
    """Slides and hinges that begin anywhere between two values, such as those of a target."""
    height: float | None = None
    """qpos of the base's height; None: it stands on the floor."""
    orientation: tuple[float, float, float, float] | None = None
    """Of a free base (w, x, y, z), before it is turned from `forward` to +x."""
    drop: bool = True
    """Let it settle on the floor."""


class ServoOptions(Record):
    """Of added servos; None: inferred."""

    stiffness: Annotated[float, Field(gt=0)] | None = None
    damping: Annotated[float, Field(ge=0)] | None = None
    effort: Annotated[float, Field(gt=0)] | None = None


class RobotOptions(Record):
    """What a TOML beside a model says; all of it may be left out."""

    control_step: Annotated[float, Field(ge=0.0005, le=1)] | None = None
    """Seconds between two actions."""
    episode: Annotated[float, Field(gt=0, le=10_000)] | None = None
    """Seconds of an episode."""
    trunk: Name | None = None
    """The body that is to be upright."""
    forward: Axis = "+x"
    """Where the robot faces in its file."""
    base: Literal["free", "fixed"] | None = None
    fixed: tuple[Name, ...] = ()
    """Joints that stay as they are."""
    start_noise: Annotated[float, Field(ge=0, le=1)] = 0.02
    observe_heading: bool = False
    start: StartOptions = StartOptions()
    ends: Ends = Ends()
    parts: dict[Name, Name] = Field(default_factory=dict)
    servos: dict[Name, ServoOptions] = Field(default_factory=dict)
    """By joint, or by a pattern of joints such as "*knee*"; the first that fits counts."""

    def servo_of(self, joint: str) -> ServoOptions:
        """Return the given servo options of a joint."""
        fitting = (given for name, given in self.servos.items() if fnmatchcase(joint, name))
        return next(fitting, ServoOptions())


class RobotModel(Record):
    """An environment from a model file, as it was decided; see the package's docstring."""

    format: Literal[1] = 1
    name: Name
    main: Name
    """The model file, in source/."""
    frame_skip: Annotated[int, Field(ge=1, le=1000)]
    """Physics steps between two actions."""
    max_episode_steps: Annotated[int, Field(ge=1, le=1_000_000)]
    trunk: str | None
    """The body whose height and orientation count; None: the base is fixed."""
    forward: Axis = "+x"
    """Where it faces in its file. It starts facing +x: a free body is turned there."""
    parts: dict[Name, Name] = Field(default_factory=dict)
    """Words for bodies, such as {"front left leg": "FL_thigh"}."""
    fixed: tuple[Name, ...] = ()
    """Joints that were taken out."""
    ends: Ends = Ends()
    start: Literal["key frame", "model", "given", "settled"]
    start_qpos: tuple[float, ...]
    start_noise: Annotated[float, Field(ge=0, le=1)] = 0.02
    """Joints and speeds begin this far from it at most (rad, m, rad/s, m/s)."""
    start_ranges: dict[Name, tuple[float, float]] = Field(default_factory=dict)
    """Slides and hinges that begin anywhere between two values."""
    floor: bool = False
    """Whether a floor was added."""
    free_base: bool = False
    """Whether the base was set free, which its file fixes to the world."""
    rounded: tuple[Name, ...] = ()
    """Bodies that got the inertia of a ball: that of their file is of no solid."""
    servos: tuple[Servo, ...] = ()
    action_offset: tuple[float, ...]
    action_scale: tuple[float, ...]
    """Of every actuator: ctrl = offset + scale * action, with the action clipped to [-1, 1]."""
    observe_action: bool
    """Whether the action before stands in the observation."""
    observe_heading: bool = False
    """Whether x, y and heading do, for tasks with a place to reach."""
