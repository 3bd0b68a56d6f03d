"""The engines that are installed beside this package, as data.

Their pins exclude ours, so an engine is a virtual environment in which the same worker runs. Its
folder is `P2P_ENGINES_DIR/<name>`: `venv`, `kernels` (compiled ones), `facts` (by version), and
`engine.json`, which is there once the installation is complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from p2p.config import ConfigurationError
from p2p.contracts import Record
from p2p.settings import get_settings

WORKER_REQUIREMENTS = (
    "pydantic>=2.10,<3",
    "safetensors>=0.5,<1",
    "gymnasium>=1.0,<2",
)
"""What the worker itself imports in an engine's environment, besides numpy, torch and mujoco."""


@dataclass(frozen=True)
class SimulationEngine:
    """One simulator: what to install, and what its processes need."""

    name: str
    title: str
    requirements: tuple[str, ...]
    """Pinned; of these and nothing else its version is made."""
    python: tuple[str, ...]
    """Python versions that it takes, the best first."""
    disk_gb: float
    minutes: float
    """To install where nothing is there yet, kernels included."""
    trial: str
    """The environment that a check steps: the smallest."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of its processes; `{home}` is the engine's folder."""
    prepare: str = ""
    """A function of its folder and its Python, as module:name: writes `assets` there."""
    notes: str = ""
    """What a person is told before it is installed."""

    @property
    def adapter(self) -> str:
        """The module that makes its environments; only the engine's own Python can import it."""
        return f"p2p.training.engines.{self.name}"

    @property
    def version(self) -> str:
        """Of its main package: facts are kept by it."""
        return self.requirements[0].partition("==")[2]


ENGINES: Mapping[str, SimulationEngine] = {
    engine.name: engine
    for engine in (
        SimulationEngine(
            name="mjlab",
            title="mjlab: MuJoCo Warp with Isaac Lab's managers; Unitree G1 and Go1",
            requirements=(
                "mjlab==1.6.0",
                "mujoco==3.11.0",
                "mujoco-mjx==3.11.0",
                "mujoco-warp==3.11.0",
                "rsl-rl-lib==5.4.2",
                "stable-baselines3==2.9.2",
                "torch==2.13.0",
                "torchvision==0.28.0",
                "warp-lang==1.19.0",
            ),
            python=("3.11", "3.12", "3.13"),
            disk_gb=3.0,
            minutes=10,
            trial="Mjlab-Cartpole-Balance",
            # It looks for these two programs when it is imported; nothing here calls them.
            env={"IMAGEIO_FFMPEG_EXE": "/bin/false", "GIT_PYTHON_REFRESH": "quiet"},
            notes="with CUDA's wheels, which pip takes on x86-64, about 6 GB more",
        ),
        SimulationEngine(
            name="isaaclab",
            title="Isaac Lab on MuJoCo Warp, without Isaac Sim: cart-pole, ant, humanoid",
            requirements=(
                "isaaclab==3.0.0",
                "mujoco==3.12.0",
                "mujoco-warp==3.12.0",
                "newton==1.6.1",
                "rsl-rl-lib==5.5.1",
                "stable-baselines3==2.9.2",
                "torch==2.11.0",
                "torchvision==0.26.0",
                "warp-lang==1.17.0",
            ),
            python=("3.12",),
            disk_gb=8.0,
            minutes=25,
            trial="Isaac-Cartpole",
            env={
                "ISAACSIM_ASSET_ROOT": "{home}/assets",
                "GIT_PYTHON_REFRESH": "quiet",
                "USER": "p2p",  # asked for by name, and the sandbox has no list of users
            },
            prepare="p2p.training.engines.install:write_isaaclab_assets",
            notes="with CUDA's wheels and omniverseclient, which are proprietary",
        ),
    )
}
"""By the name that `engine` of TrainConfig has."""


class EnvironmentRefused(ConfigurationError):
    """The engine has the environment, and it cannot run here; the message says why."""


class EngineMissing(ConfigurationError):
    """The engine is known, and not installed; the message says how to install it."""


class Installed(Record):
    """`engine.json`: an installation that is complete."""

    engine: str
    version: str
    python: Path
    versions: dict[str, str]
    """Of the packages that were asked for."""


class EngineEnvironment(Record):
    """One id of an engine, as listed without starting it."""

    env_id: str
    dt: float
    max_episode_steps: int
    needs: str = ""
    """What it needs besides the engine: a download, another physics engine."""
    supported: bool = True
    """Whether it can run here, once it has what it needs."""
    preset: dict[str, Any] | None = None
    """The engine's own training configuration, where the list has it."""


def is_engine(name: str) -> bool:
    """Return whether this simulator runs in an environment of its own."""
    return name in ENGINES


def get_engine(name: str) -> SimulationEngine:
    if name not in ENGINES:
        raise ConfigurationError(f"no engine {name!r}; there are {', '.join(ENGINES)}")
    return ENGINES[name]


def engine_folder(name: str) -> Path:
    return get_settings().engines_dir / get_engine(name).name


def find_unmet(requirements: Iterable[str], versions: Mapping[str, str]) -> list[str]:
    """Return the requirements that these versions do not meet; only `==` pins are compared."""
    return [
        requirement
        for requirement in requirements
        if package_name(requirement) not in versions
        # A local version such as 2.13.0+cpu is the same release.
        or requirement.partition("==")[2]
        not in ("", versions[package_name(requirement)].partition("+")[0])
    ]


def package_name(requirement: str) -> str:
    return requirement.partition("==")[0].partition(">=")[0]


def find_installed(name: str, folder: Path | None = None) -> Installed | None:
    """Return an engine's installation, or None if missing, incomplete or of other versions."""
    path = (folder or engine_folder(name)) / "engine.json"
    try:
        installed = Installed.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    wanted = get_engine(name).requirements
    current = installed.python.exists() and not find_unmet(wanted, installed.versions)
    return installed if current else None


def require_installed(name: str) -> Installed:
    """Return an engine's installation; raise EngineMissing with the command to install it."""
    found = find_installed(name)
    if found is None:
        raise EngineMissing(
            f"the engine {name!r} is not installed: p2p engines install {name} "
            f"(about {get_engine(name).disk_gb:g} GB)"
        )
    return found


@cache
def engine_environments(name: str) -> Mapping[str, EngineEnvironment]:
    """The ids of an engine, from the list that scripts/engine_registry.py writes."""
    path = resources.files("p2p.training.engines").joinpath(f"{get_engine(name).name}.json")
    entries: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    return {entry["env_id"]: EngineEnvironment.model_validate(entry) for entry in entries}


def check_supported(name: str, env_id: str) -> None:
    """Raise EnvironmentRefused for an id that no download makes run here."""
    environment = engine_environments(name).get(env_id)
    if environment is not None and not environment.supported:
        raise EnvironmentRefused(
            f"{env_id} cannot run here: it needs {environment.needs} "
            f"(`p2p envs --engine {name}` lists those that can)"
        )
