"""Robots and ground for Isaac Lab without a download.

Its tasks name files on a server. `write_assets` writes those of the cart-pole, double pendulum, ant
and humanoid under the same paths into a folder; `ISAACSIM_ASSET_ROOT` points Isaac Lab there. The
pendulums and the ground are described here. Ant and humanoid are made from the files that come
with Newton in the engine's environment, so they are not copied into this package.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from p2p.files import write_text

Vec = tuple[float, float, float]

_HEADER = '#usda 1.0\n(\n    defaultPrim = "{root}"\n    metersPerUnit = 1\n    upAxis = "Z"\n)\n\n'
_ANT_DENSITY = 5
"""kg/m³: with it the ant weighs what MuJoCo's does, 0.91 kg."""
_HUMANOID_JOINTS: Mapping[str, str] = {
    "abdomen_x": "pelvis",
    "right_knee": "right_shin",
    "left_knee": "left_shin",
    "right_elbow": "right_lower_arm",
    "left_elbow": "left_lower_arm",
}
"""Newton's name of a joint to the one that Isaac Lab's tasks look for."""


@dataclass(frozen=True, slots=True)
class Box:
    """A body of a pendulum: one box."""

    name: str
    size: Vec
    mass: float
    at: Vec = (0.0, 0.0, 0.0)
    """The body's frame in the world."""
    centre: Vec = (0.0, 0.0, 0.0)
    """Of the box in the body's frame."""
    colour: Vec = (0.6, 0.6, 0.6)


@dataclass(frozen=True, slots=True)
class Joint:
    """Moves `child` against `parent` about or along an axis through the child's origin."""

    name: str
    parent: str
    child: str
    slides: bool = False
    """Along y, 4 m to each side; otherwise it turns about x without a limit."""


RAIL = Box("slider", (0.03, 8.0, 0.03), 1.0, colour=(0.8, 0.8, 0.8))
CART = Box("cart", (0.2, 0.25, 0.2), 1.0, colour=(0.3, 0.5, 0.7))
POLE = Box(
    "pole", (0.04, 0.06, 1.0), 1.0, at=(0.12, 0.0, 0.0), centre=(0.0, 0.0, 0.47),
    colour=(0.8, 0.5, 0.2),
)  # fmt: skip
PENDULUM = Box(
    "pendulum", (0.04, 0.06, 1.0), 1.0, at=(0.17, 0.0, 0.94), centre=(0.0, 0.0, 0.47),
    colour=(0.5, 0.3, 0.6),
)  # fmt: skip
SLIDE = Joint("slider_to_cart", "slider", "cart", slides=True)
HINGE = Joint("cart_to_pole", "cart", "pole")
SECOND_HINGE = Joint("pole_to_pendulum", "pole", "pendulum")


def _vec(values: Sequence[float]) -> str:
    return f"({', '.join(f'{v:g}' for v in values)})"


def _box(box: Box) -> str:
    x, y, z = box.size
    inertia = [box.mass / 12 * s for s in (y * y + z * z, x * x + z * z, x * x + y * y)]
    return f"""
    def Xform "{box.name}" (
        prepend apiSchemas = ["PhysicsRigidBodyAPI", "PhysicsMassAPI"]
    )
    {{
        float physics:mass = {box.mass:g}
        point3f physics:centerOfMass = {_vec(box.centre)}
        float3 physics:diagonalInertia = {_vec(inertia)}
        quatf physics:principalAxes = (1, 0, 0, 0)
        double3 xformOp:translate = {_vec(box.at)}
        uniform token[] xformOpOrder = ["xformOp:translate"]

        def Cube "{box.name}_box" (
            prepend apiSchemas = ["PhysicsCollisionAPI"]
        )
        {{
            double size = 1
            color3f[] primvars:displayColor = [{_vec(box.colour)}]
            double3 xformOp:translate = {_vec(box.centre)}
            double3 xformOp:scale = {_vec(box.size)}
            uniform token[] xformOpOrder = ["xformOp:translate", "xformOp:scale"]
        }}
    }}
"""


def _joint(joint: Joint, root: str, offset: Vec) -> str:
    kind = "Prismatic" if joint.slides else "Revolute"
    limits = ""
    if joint.slides:
        limits = "\n        float physics:lowerLimit = -4\n        float physics:upperLimit = 4"
    return f"""
    def Physics{kind}Joint "{joint.name}"
    {{
        uniform token physics:axis = "{"Y" if joint.slides else "X"}"
        rel physics:body0 = </{root}/{joint.parent}>
        rel physics:body1 = </{root}/{joint.child}>
        point3f physics:localPos0 = {_vec(offset)}
        point3f physics:localPos1 = (0, 0, 0)
        quatf physics:localRot0 = (1, 0, 0, 0)
        quatf physics:localRot1 = (1, 0, 0, 0){limits}
    }}
"""


def pendulum_usd(root: str, boxes: Sequence[Box], joints: Sequence[Joint]) -> str:
    """A rail that is fixed to the world, and what moves along it, as USD."""
    at = {box.name: box.at for box in boxes}

    def offset(joint: Joint) -> Vec:
        (x, y, z), (u, v, w) = at[joint.child], at[joint.parent]
        return (x - u, y - v, z - w)

    parts = [_box(box) for box in boxes]
    parts += [_joint(joint, root, offset(joint)) for joint in joints]
    return (
        _HEADER.format(root=root)
        + f'def Xform "{root}" (\n    prepend apiSchemas = ["PhysicsArticulationRootAPI"]\n)\n{{'
        + "".join(parts)
        + '\n    def PhysicsFixedJoint "root_joint"\n    {\n'
        + f"        rel physics:body1 = </{root}/{boxes[0].name}>\n    }}\n}}\n"
    )


GROUND = (
    _HEADER.format(root="World")
    + """def Xform "World"
{
    def Xform "GroundPlane"
    {
        def Plane "CollisionPlane" (
            prepend apiSchemas = ["PhysicsCollisionAPI"]
        )
        {
            uniform token axis = "Z"
            uniform token purpose = "guide"
        }
    }
}
"""
)


def ant_usd(newton: str) -> str:
    """Newton's ant, as heavy as MuJoCo's."""
    return re.sub(r"(physics:density = )1\b", rf"\g<1>{_ANT_DENSITY}", newton)


def humanoid_usd(newton: str) -> str:
    """Newton's humanoid, its joints named as the tasks of Isaac Lab name them."""
    for old, new in _HUMANOID_JOINTS.items():
        newton = newton.replace(f'Joint "{old}"', f'Joint "{new}"')
    return newton


def write_assets(folder: Path, newton_assets: Path) -> None:
    """Write the asset root.

    Args:
        folder: What `ISAACSIM_ASSET_ROOT` is to be set to.
        newton_assets: `newton/examples/assets` of the engine's environment.
    """
    lab, sim = folder / "Isaac/IsaacLab", folder / "Isaac/Robots/IsaacSim"
    ground = lab / "Environments/Grid/default_ground_plane_checker_v1/default_ground_plane.usda"
    classic = lab / "Robots/Classic"
    cartpole = (RAIL, CART, POLE), (SLIDE, HINGE)
    double = (*cartpole[0], PENDULUM), (*cartpole[1], SECOND_HINGE)
    files = {
        ground: GROUND,
        classic / "Cartpole/cartpole.usd": pendulum_usd("cartpole", *cartpole),
        classic / "CartDoublePendulum/cart_double_pendulum.usd": pendulum_usd(
            "cart_double_pendulum", *double
        ),
        sim / "Ant/ant_instanceable.usd": ant_usd((newton_assets / "ant.usda").read_text()),
        sim / "Humanoid/humanoid_instanceable.usd": humanoid_usd(
            (newton_assets / "humanoid.usda").read_text()
        ),
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


_WHERE = "import importlib.util; print(importlib.util.find_spec('newton').origin)"


def prepare(home: Path, python: Path) -> None:
    """Write what the engine's processes read besides its packages."""
    where = subprocess.run(
        [python, "-I", "-c", _WHERE], capture_output=True, text=True, timeout=120, check=True
    ).stdout.strip()
    write_assets(home / "assets", Path(where).parent / "examples" / "assets")
