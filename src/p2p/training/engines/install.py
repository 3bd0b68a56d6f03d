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
from importlib import import_module, resources
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
    find_unmet,
    get_engine,
    package_name,
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
    """Return the versions of those of these packages that an interpreter has."""
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
    return find_unmet(wanted, package_versions(python, wanted))


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
    with files.hold_lock(home / ".lock", patience_s=1.0):
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


# --- Isaac Lab's robots and ground, without a download --------------------------------------------
#
# Its tasks name files on a server. The same paths are written into a folder, to which
# ISAACSIM_ASSET_ROOT points Isaac Lab. The pendulums and the ground come with this package. Ant and
# humanoid are made from the files that come with Newton in the engine's environment.

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
    pendulum = lab / "Robots/Classic/CartDoublePendulum/cart_double_pendulum.usd"
    files = {
        ground: _read_asset("ground"),
        lab / "Robots/Classic/Cartpole/cartpole.usd": _read_asset("cartpole"),
        pendulum: _read_asset("cart_double_pendulum"),
        sim / "Ant/ant_instanceable.usd": ant_usd((newton_assets / "ant.usda").read_text()),
        sim / "Humanoid/humanoid_instanceable.usd": humanoid_usd(
            (newton_assets / "humanoid.usda").read_text()
        ),
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


def _read_asset(name: str) -> str:
    folder = resources.files("p2p.training.engines") / "assets"
    return (folder / f"{name}.usda").read_text("utf-8")


_WHERE = "import importlib.util; print(importlib.util.find_spec('newton').origin)"


def write_isaaclab_assets(home: Path, python: Path) -> None:
    """Write the asset root of an engine's folder, from what its Python has of Newton."""
    where = subprocess.run(
        [python, "-I", "-c", _WHERE], capture_output=True, text=True, timeout=120, check=True
    ).stdout.strip()
    write_assets(home / "assets", Path(where).parent / "examples" / "assets")
