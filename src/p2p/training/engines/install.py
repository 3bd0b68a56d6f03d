"""Installing an engine: a virtual environment with pinned packages, its assets, and warm kernels.

Every step looks first whether it is done, so a second call finishes what a first one left.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from p2p import files
from p2p.config import ConfigurationError
from p2p.files import write_text
from p2p.sandbox import gpu, start_gpu
from p2p.training.engines.facts import EngineFailed, run_child
from p2p.training.engines.table import (
    WORKER_REQUIREMENTS,
    Installed,
    SimulationEngine,
    engine_folder,
    find_installed,
    get_engine,
    package_name,
    unmet,
)

Progress = Callable[[str], None]
_SHOWN = 100
_VERSIONS = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""
TRIAL_ENVS, TRIAL_STEPS = 4, 20


def find_python(engine: SimulationEngine, python: str | None = None) -> Path:
    """An interpreter that the engine takes; ConfigurationError says which ones it does."""
    names = [python] if python else [sys.executable, *(f"python{v}" for v in engine.python)]
    for name in names:
        path = shutil.which(name)
        if path is not None and _python_version(path) in engine.python:
            return Path(path).absolute()
    wanted = " or ".join(engine.python)
    given = f"{python} is none; " if python else ""
    raise ConfigurationError(
        f"{engine.name} needs Python {wanted}: {given}name one with --python /path/to/python"
    )


def _python_version(python: str | Path) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        answer = subprocess.run(
            [python, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()


def package_versions(python: Path, requirements: Sequence[str]) -> dict[str, str]:
    """Which of these packages an interpreter has, and in which version."""
    names = [package_name(requirement) for requirement in requirements]
    answer = subprocess.run(
        [python, "-I", "-c", _VERSIONS, *names],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    versions: dict[str, str] = json.loads(answer.stdout)
    return versions


def missing(engine: SimulationEngine, python: Path) -> list[str]:
    """The requirements that an interpreter does not meet."""
    wanted = (*engine.requirements, *WORKER_REQUIREMENTS)
    return unmet(wanted, package_versions(python, wanted))


def install(
    name: str,
    *,
    folder: Path | None = None,
    python: str | None = None,
    on_progress: Progress = lambda _: None,
) -> Installed:
    """Install an engine, or finish installing it; afterwards its smallest environment stepped.

    `python` is the interpreter to build on. One that has the engine already, in the pinned
    versions, is used as it is. Raises ConfigurationError and EngineFailed.
    """
    engine = get_engine(name)
    home = (folder or engine_folder(name)).absolute()
    venv = home / "venv" / "bin" / "python"
    home.mkdir(parents=True, exist_ok=True)
    with files.locked(home / ".lock", patience_s=1.0):
        known = find_installed(name, home)
        if known is None or python is not None:
            base = find_python(engine, python)
            chosen = base if python is not None and not missing(engine, base) else venv
            if chosen is venv:
                _check_space(engine, home)
                _build(engine, base, home, on_progress)
            if engine.prepare:
                module, _, function = engine.prepare.partition(":")
                getattr(import_module(module), function)(home, chosen)
            versions = package_versions(chosen, engine.requirements)
            known = Installed(engine=name, version=engine.version, python=chosen, versions=versions)
        check(name, found=known, folder=home, on_progress=on_progress)
        files.write_text(home / "engine.json", known.model_dump_json(indent=2) + "\n")
    return known


def check(
    name: str,
    *,
    found: Installed | None = None,
    folder: Path | None = None,
    on_progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Step the engine's smallest environment in the sandbox, and say what was seen."""
    engine = get_engine(name)
    problem = ""
    if gpu.present():
        names, problem = start_gpu()
        on_progress(f"the GPU does not start: {problem}" if problem else f"on {', '.join(names)}")
    seen = run_child(
        name,
        found=found,
        home=folder,
        env_id=engine.trial,
        num_envs=TRIAL_ENVS,
        steps=TRIAL_STEPS,
        device="cpu" if problem else "auto",
        on_progress=lambda what, seconds: on_progress(f"{what} ({seconds:.0f} s)"),
    )
    return {**seen, "gpu_problem": problem}


def _check_space(engine: SimulationEngine, home: Path) -> None:
    free = shutil.disk_usage(home).free / 1e9
    if free < engine.disk_gb and not (home / "venv").exists():
        raise ConfigurationError(
            f"{home} has {free:.1f} GB left and {engine.name} takes {engine.disk_gb:g} GB: "
            "name another place with --folder, or in P2P_ENGINES_DIR"
        )


def _build(engine: SimulationEngine, base: Path, home: Path, on_progress: Progress) -> None:
    """The virtual environment and its packages."""
    python = home / "venv" / "bin" / "python"
    log = home / "install.log"
    if not _python_version(python):
        shutil.rmtree(home / "venv", ignore_errors=True)
        on_progress(f"making a virtual environment with {base}")
        _run([str(base), "-m", "venv", str(home / "venv")], log, on_progress)
    if wanted := missing(engine, python):
        on_progress(f"installing {', '.join(wanted)}")
        uv = shutil.which("uv")
        pip = (
            [uv, "pip", "install", "--python", str(python)]
            if uv
            else [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
        )
        # All pins at once, so that nothing that is missing can move one that is there.
        _run([*pip, *engine.requirements, *WORKER_REQUIREMENTS], log, on_progress)
        if left := missing(engine, python):
            raise EngineFailed(f"pip did not install {', '.join(left)}; see {log}")


def _run(command: Sequence[str], log: Path, on_progress: Progress) -> None:
    """Run a program to its end; when this process is interrupted, it ends, too."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    last = ""
    with (
        log.open("a", encoding="utf-8") as file,
        subprocess.Popen(
            command,
            env=env,
            cwd=log.parent,  # uv and pip are configured by files of the folder they start in
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                if line.strip():
                    last = line.strip()
                    on_progress(last[:_SHOWN])
            code = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            raise
    if code:
        raise EngineFailed(f"{Path(command[0]).name} failed: {last[:300]}; see {log}")


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


def write_isaaclab_assets(home: Path, python: Path) -> None:
    """Write the asset root of an engine's folder, from what its Python has of Newton."""
    where = subprocess.run(
        [python, "-I", "-c", _WHERE], capture_output=True, text=True, timeout=120, check=True
    ).stdout.strip()
    write_assets(home / "assets", Path(where).parent / "examples" / "assets")
