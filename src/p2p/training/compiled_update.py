"""What an update is compiled for, and compiled updates that are kept between runs.

Compiling takes longer than many a short training. The trainer cannot keep what it compiled: it
shares its process with a reward that nobody has vouched for. So a process that never sees a reward
compiles, once per machine, version and program, and the sandbox reads the result. JAX looks it up
by a key of its own, and compiles anew where that differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2p import files
from p2p.training.policies.network import NetworkShape
from p2p.utils.subprocess_utils import NEUTRAL, absolute_environment, python_command

if TYPE_CHECKING:
    from p2p.config import TrainConfig

COMPILE_SECONDS = 120.0
COMPILER = "p2p.training.ppo"
"""The module that compiles the program it is given as JSON."""
KEPT = 64
"""Programs on disk, the newest: each has some 100 kB."""
SOURCES = ("ppo.py", "policies/network.py")
"""What the program is made from."""


@dataclass(frozen=True, slots=True)
class UpdateProgram:
    """What an update is compiled for: shapes, and what it does. Rates and weights are arguments."""

    shape: NetworkShape
    num_steps: int
    num_envs: int
    epochs: int
    minibatch_size: int
    norm_adv: bool = True
    clip_vloss: bool = False
    stops_early: bool = False

    @classmethod
    def from_config(cls, config: TrainConfig, obs_dim: int, action_dim: int) -> UpdateProgram:
        return cls(
            shape=NetworkShape.from_config(config, obs_dim, action_dim),
            num_steps=config.num_steps,
            num_envs=config.num_envs,
            epochs=config.update_epochs,
            minibatch_size=config.minibatch_size,
            norm_adv=config.norm_adv,
            clip_vloss=config.clip_vloss,
            stops_early=config.target_kl is not None,
        )

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> UpdateProgram:
        fields: dict[str, Any] = json.loads(text)
        shape = fields.pop("shape")
        shape["net_arch"] = tuple(shape["net_arch"])
        return cls(NetworkShape(**shape), **fields)

    def key(self) -> str:
        words = json.dumps([asdict(self), *_machine()], sort_keys=True)
        return hashlib.sha256(words.encode()).hexdigest()[:32]


@cache
def _machine() -> tuple[str, ...]:
    """Versions and sources, and the processor: code for one may crash on another."""
    folder = Path(__file__).parent
    sources = hashlib.sha256(b"".join((folder / name).read_bytes() for name in SOURCES))
    cpu = [
        line
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        if line.startswith(("model name", "flags", "Features", "CPU part"))
    ]
    versions = [version(name) for name in ("jax", "jaxlib")]
    return (*versions, sources.hexdigest(), *sorted(set(cpu)))


def compiled_update(program: UpdateProgram, root: Path, environment: dict[str, str]) -> Path | None:
    """The folder with the compiled program below `root`, made where it is not there yet.

    `environment` is the trainer's, which JAX's key depends on. None where it cannot be made: the
    trainer compiles for itself then.
    """
    try:
        folder = root / program.key()
        if folder.is_dir():
            return folder
        # Others that want the same program wait for it, no longer than compiling it would take.
        with files.hold_lock(root / f"{folder.name}.lock", patience_s=COMPILE_SECONDS):
            if not folder.is_dir():
                _compile(program, folder, environment)
                _forget_old(root)
    except (OSError, TimeoutError, subprocess.SubprocessError):
        return None
    return folder


def _compile(program: UpdateProgram, folder: Path, environment: dict[str, str]) -> None:
    # As in the sandbox, where nothing of the caller's gets through.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    made = folder.with_name(f".{folder.name}")
    shutil.rmtree(made, ignore_errors=True)  # who was killed while it compiled
    made.mkdir()
    subprocess.run(
        python_command(COMPILER),
        input=program.to_json(),
        env=absolute_environment({**inherited, **environment, **cache_variables(made), **WRITING}),
        cwd=NEUTRAL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=COMPILE_SECONDS,
        check=True,
    )
    if not any(made.iterdir()):  # JAX only warns where it cannot write, as on a full disk
        raise OSError(f"{made} is empty")
    made.rename(folder)


WRITING = {
    "JAX_PLATFORMS": "cpu",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def cache_variables(folder: Path) -> dict[str, str]:
    """Environment variables with which JAX looks there, and never writes."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1000000",
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    }


def _forget_old(root: Path) -> None:
    folders = [path for path in root.iterdir() if path.is_dir() and path.name[0] != "."]
    for old in sorted(folders, key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
        (root / f"{old.name}.lock").unlink(missing_ok=True)
