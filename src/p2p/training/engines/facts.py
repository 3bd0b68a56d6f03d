"""The engine as this process sees it: its child processes, and what they leave."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from p2p import files
from p2p.config import ConfigurationError
from p2p.contracts import PolicyMetadata
from p2p.sandbox import LIBRARIES_BYTES, Sandbox, gpu, read_arrays, read_message, run_worker
from p2p.settings import get_settings
from p2p.training.engines.table import (
    Installed,
    check_supported,
    engine_environments,
    engine_folder,
    get_engine,
    is_engine,
    require_installed,
)
from p2p.training.env_spec import EnvSpec
from p2p.training.envs.registry import UnknownEnvironmentError, own_folders
from p2p.training.model_files.facts import read_facts as read_model_facts
from p2p.training.model_files.store import folder_of, is_model
from p2p.training.trajectory import MAX_BYTES, RecordedEpisode, TrajectoryFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from p2p.config import TrainConfig
    from p2p.sandbox import SandboxedProcess, SandboxExit
    from p2p.training.policies.policy import Policy

Fact = TypeVar("Fact", bound=BaseModel)
CHILD = "p2p.training.engines.child"
GIB = 1 << 30
START_SECONDS = 900.0
"""To import an engine and to compile its kernels on a busy machine."""
GPU_MEMORY_BYTES = 16 << 30
"""Of the host, that CUDA's libraries may take for themselves."""
FACTS_ENVS = 4
FACTS_FORMAT = 4
"""Counted up when facts with the same fields are read otherwise, or an environment behaves
otherwise: facts and recorded behaviours are then read again."""
_BUILDING = re.compile(r"_p[0-9]+_t[0-9]+$")


class EngineFailed(Exception):
    """An engine's process ended without its answer."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


@dataclass(frozen=True)
class Surroundings:
    """What of a Sandbox depends on the engine."""

    python: Path | None = None
    readable: tuple[Path, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    gpu: bool = False
    """Whether the process computes on the machine's GPU."""
    memory_bytes: int = 0
    """Of the GPU's libraries, besides what the work itself may take."""
    start_seconds: float = 0.0
    """To be granted before its first word, besides what the work itself may take."""

    def sandbox(
        self,
        folder: Path,
        *,
        wall_seconds: float = 0.0,
        stall_seconds: float | None = None,
        memory_bytes: int = 4 * GIB,
        disk_bytes: int | None = None,
        max_lines: int | None = None,
        readable: tuple[Path, ...] = (),
        import_paths: tuple[Path, ...] | None = None,
        env: Mapping[str, str] | None = None,
        warm: tuple[str, ...] = (),
    ) -> Sandbox:
        """The sandbox of work that may use so much, with what the engine takes on top.

        It may read and import from the user's own folders, unless `import_paths` are given.
        """
        stall = None if stall_seconds is None else stall_seconds + self.start_seconds
        least_disk = GIB // 16 if self.python is None else GIB  # kernels, if any are new
        return Sandbox(
            folder=folder,
            python=self.python,
            readable=(*readable, *self.readable),
            import_paths=own_folders() if import_paths is None else import_paths,
            env={**(env or {}), **self.env},
            warm=warm,
            gpu=self.gpu,
            memory_bytes=memory_bytes + self.memory_bytes,
            address_bytes=LIBRARIES_BYTES,
            disk_bytes=disk_bytes or least_disk,
            wall_seconds=wall_seconds + self.start_seconds,
            stall_seconds=stall,
            max_lines=max_lines,
        )


def surroundings(config: TrainConfig, folder: Path) -> Surroundings:
    """For a process that makes this configuration's environments and writes to `folder`.

    The GPU is opened to an engine where there is one, unless the device is the CPU. A model file's
    environment can be read there.

    Compiled kernels are linked into the folder, file by file: Warp adds files to folders that are
    there already (`lto`). What the process compiles itself stays there, because a reward may have
    had a hand in it. Raises EngineMissing.
    """
    engine = config.engine
    if is_model(config.env_id):
        variables = {"P2P_MODELS_DIR": str(get_settings().models_dir)}
        return Surroundings(readable=(folder_of(config.env_id),), env=variables)
    if not is_engine(engine):
        return Surroundings()
    return _surroundings(
        engine, require_installed(engine), engine_folder(engine), folder, config.device
    )


def _surroundings(
    engine: str, found: Installed, home: Path, folder: Path, device: str
) -> Surroundings:
    kernels = folder / "kernels"
    for file in home.glob("kernels/*/*/*"):
        link = kernels / file.relative_to(home / "kernels")
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(file)
    variables = {name: value.format(home=home) for name, value in get_engine(engine).env.items()}
    env = {"WARP_CACHE_PATH": str(kernels), **variables}
    readable = tuple(path for name in ("kernels", "assets") if (path := home / name).exists())
    on_gpu = device != "cpu" and gpu.present()
    memory = GPU_MEMORY_BYTES if on_gpu else 0
    return Surroundings(found.python, readable, env, on_gpu, memory, START_SECONDS)


def run_child(
    engine: str,
    *,
    found: Installed | None = None,
    home: Path | None = None,
    prepare: Callable[[Path], None] = lambda _: None,
    keep: Callable[[Path], None] = lambda _: None,
    on_progress: Callable[[str, float], object] = lambda *_: None,
    device: str = "auto",
    **payload: Any,
) -> dict[str, Any]:
    """Run the engine's own side and return its answer; kernels that it compiled are kept.

    `prepare` and `keep` are called with its folder and with what it left, before and after it runs.
    Raises EngineFailed.
    """
    home = home or engine_folder(engine)
    (home / "kernels").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="p2p-engine-") as name:
        folder = Path(name)
        prepare(folder)
        around = _surroundings(engine, found or require_installed(engine), home, folder, device)
        answer: dict[str, Any] | None = None

        def take(message: dict[str, Any], _: SandboxedProcess) -> None:
            nonlocal answer
            answer = message.get("done", answer)
            if "progress" in message:
                on_progress(str(message["progress"]), float(message["seconds"]))

        process = run_worker(
            CHILD,
            {**payload, "engine": engine, "folder": name, "device": device},
            around.sandbox(folder, memory_bytes=8 * GIB, disk_bytes=2 * GIB, import_paths=()),
            read=read_message,
            on_message=take,
        )
        _keep_kernels(process.folder / "kernels", home / "kernels")
        if answer is None:
            end = process.wait()
            raise EngineFailed(f"{engine} did not start: {_reason(end)}", end.output_tail)
        keep(process.folder)
        return answer


def _reason(end: SandboxExit) -> str:
    lines = [line for line in end.output_tail.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else ""
    reason = end.message if last in end.message else f"{end.message}; {last}"
    return reason[:500]


def _keep_kernels(source: Path, target: Path) -> None:
    """Copy newly compiled files to where later processes find them; none there is replaced."""
    for file in source.glob("*/*/*"):
        place = target / file.relative_to(source)
        if file.is_symlink() or place.exists() or not file.is_file():
            continue
        if _BUILDING.search(file.parent.name):  # what a compiler left
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(place, file.read_bytes())


@cache
def _fields_digest() -> str:
    """Another one when a fact has other fields, which facts of before do not know."""
    schemas = [record.model_json_schema() for record in (EnvSpec, PolicyMetadata)]
    parts = [part for schema in schemas for part in (schema, *schema.get("$defs", {}).values())]
    names = [sorted(part.get("properties", ())) for part in parts]
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:8]


def facts_folder(engine: str, env_id: str) -> Path:
    """Where spec, preset, policy_metadata (.json) and model/scene.xml lie, once they were read."""
    known = f"{get_engine(engine).version}-{FACTS_FORMAT}-{_fields_digest()}"
    return engine_folder(engine) / "facts" / known / env_id


def read_facts(
    engine: str,
    env_id: str,
    on_progress: Callable[[str, float], object] = lambda *_: None,
) -> Path:
    """The folder with an environment's facts; the first time, the engine is started for it."""
    if env_id not in engine_environments(engine):
        raise UnknownEnvironmentError(env_id, engine_environments(engine))
    target = facts_folder(engine, env_id)
    if (target / "spec.json").exists():
        return target
    check_supported(engine, env_id)
    needs = engine_environments(engine)[env_id].needs

    def keep(folder: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with files.hold_lock(target.parent / f".{env_id}.lock"):
            if not target.exists():
                partial = target.with_name(f".{env_id}.partial")
                shutil.rmtree(partial, ignore_errors=True)
                shutil.copytree(folder / "facts", partial)
                partial.replace(target)

    try:
        run_child(
            engine, env_id=env_id, num_envs=FACTS_ENVS, steps=1, facts=True,
            keep=keep, on_progress=on_progress,
        )  # fmt: skip
    except EngineFailed as error:
        hint = f" (it needs {needs})" if needs else ""
        raise ConfigurationError(f"{env_id}{hint}: {error}") from error
    return target


def policy_metadata(
    config: TrainConfig,
    run_path: str,
    on_progress: Callable[[str, float], object] = lambda *_: None,
) -> PolicyMetadata:
    """What policies of this configuration carry when they are exported; reads facts if need be."""
    if is_model(config.env_id):
        read = read_model_facts(config.env_id).policy_metadata
    else:
        folder = read_facts(config.engine, config.env_id, on_progress)
        read = _read_fact(folder / "policy_metadata.json", PolicyMetadata)
    metadata = read.model_copy(update={"run_path": run_path})
    return metadata.with_time() if config.observe_time else metadata


def _read_fact(path: Path, record: type[Fact]) -> Fact:
    try:
        return record.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigurationError(
            f"{path} is missing or damaged: remove {path.parent}, and the engine is asked again"
        ) from error


@cache
def engine_preset(engine: str, env_id: str) -> dict[str, Any]:
    """The engine's own training configuration of an environment, as fields of TrainConfig."""
    preset: dict[str, Any] = json.loads((read_facts(engine, env_id) / "preset.json").read_text())
    return preset


class EngineBackend:
    """The SimulatorBackend of an engine that is installed beside this package.

    Bodies, joints and quantities are MuJoCo's: quaternions are (w, x, y, z), frames the world's.
    """

    engine_name: str

    def read_spec(self, env_id: str) -> EnvSpec:
        return _read_fact(read_facts(self.engine_name, env_id) / "spec.json", EnvSpec)

    def extract_side_info(self, env: Any) -> dict[str, Any]:
        raise NotImplementedError(f"{self.engine_name} steps batches: see EngineEnv.side_info")

    def reward_namespace(self) -> dict[str, Any]:
        import mujoco

        return {"mujoco": mujoco}


class MjlabBackend(EngineBackend):
    engine_name = "mjlab"


class IsaacLabBackend(EngineBackend):
    """Isaac Lab itself has quaternions (x, y, z, w), and every environment its own origin."""

    engine_name = "isaaclab"


def play_in_engine(
    config: TrainConfig,
    acts: Sequence[Policy | str],
    *,
    rows: int,
    episodes: int,
    seed: int,
) -> Iterator[RecordedEpisode]:
    """Play so many episodes of each as `play_episodes` does; one child of the engine steps."""
    with tempfile.TemporaryDirectory(prefix="p2p-played-") as name:
        place = Path(name)
        files = [place / f"episode_{i}.npz" for i in range(len(acts) * episodes)]

        def keep(folder: Path) -> None:
            for file in files:
                arrays = read_arrays(folder, file.name, max_bytes=MAX_BYTES)
                RecordedEpisode.from_arrays(arrays).save(file)

        def prepare(folder: Path) -> None:
            for act in acts:
                if not isinstance(act, str):
                    act.save(folder / "policy.safetensors")

        play: dict[str, Any] = {
            "config": config.model_dump(mode="json"),
            "acts": [act if isinstance(act, str) else None for act in acts],
            "rows": rows,
            "episodes": episodes,
            "seed": seed,
        }
        run_child(
            config.engine,
            play=play,
            prepare=prepare,
            keep=keep,
            device=config.device,
        )
        for file in files:
            yield RecordedEpisode.load(file)


def play_behaviours_in_engine(
    config: TrainConfig, acts: Sequence[str], *, rows: int, episodes: int, seed: int
) -> list[RecordedEpisode]:
    """Play behaviours that need no policy; later calls read what the first one kept.

    They are facts of the environment, and each start of an engine takes as long as a check.
    """
    config = config.with_updates(seed=0)  # of training, else each seed would keep its own
    asked = {
        "options": repr(config.env_options()),
        "on_gpu": config.device != "cpu" and gpu.present(),
        "acts": list(acts), "rows": rows, "episodes": episodes, "seed": seed,
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
    facts = read_facts(config.engine, config.env_id)
    if not os.access(facts, os.W_OK):  # another user's installation
        return list(play_in_engine(config, acts, rows=rows, episodes=episodes, seed=seed))
    folder = facts / "behaviours" / digest
    paths = [folder / f"{i}.npz" for i in range(len(acts) * episodes)]
    with files.hold_lock(folder.with_name(f".{digest}.lock"), patience_s=2 * START_SECONDS):
        with suppress(OSError, TrajectoryFileError):
            return [RecordedEpisode.load(path) for path in paths]
        folder.mkdir(parents=True, exist_ok=True)
        played = play_in_engine(config, acts, rows=rows, episodes=episodes, seed=seed)
        for path, episode in zip(paths, played, strict=True):
            episode.save(path)
    return [RecordedEpisode.load(path) for path in paths]
