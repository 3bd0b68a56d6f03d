"""Starting a sandboxed process: what it may read, its environment, its command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from p2p.sandbox import enter, gpu
from p2p.sandbox.forked import fork
from p2p.sandbox.limits import (
    GIB,
    Sandbox,
    SandboxUnavailable,
    is_unsafe_local,
    set_unsafe_local,
)
from p2p.sandbox.process import Child, SandboxedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Message = TypeVar("Message")

_START_SECONDS = 60.0
_TICK_SECONDS = 0.5
_FIXED_ENV = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the same run twice iterates its sets in the same order
    "PYTHONUNBUFFERED": "1",
    "MUJOCO_GL": "disable",  # nothing is drawn here, and looking for a display starts programs
    "USER": "sandbox",  # libraries name folders by it, and the list of users is closed
    "JAX_PLATFORMS": "cpu",  # device files are closed: do not look for them
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "4",  # each reserves 64 MiB of addresses; else every thread has its own
}

PACKAGE = Path(__file__).resolve().parents[1]

_SYSTEM = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/share/zoneinfo",
    "/nix/store",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/urandom",
    "/dev/random",
    # Not the whole of it, where the machine's connections can be read.
    *(
        f"/proc/self/{name}"
        for name in ["auxv", "cgroup", "cmdline", "environ", "fd", "limits", "maps"]
    ),
    *(f"/proc/self/{name}" for name in ["mountinfo", "mounts", "smaps", "stat", "statm", "status"]),
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/filesystems",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/kernel/mm/transparent_hugepage",
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python, and where its modules lie."""

    executable: str
    prefixes: tuple[str, ...]
    """Its own first, then those that it is built on."""
    paths: tuple[str, ...]
    """Of its standard library and of what is installed."""
    sys_path: tuple[str, ...]

    @property
    def folders(self) -> set[Path]:
        """Where Python's own and installed modules lie, and never a whole prefix or home."""
        folders = {Path(path) for path in self.paths}
        for prefix in set(self.prefixes):
            folders |= {Path(prefix) / "lib", Path(prefix) / "lib64"}
        return folders


_DESCRIBE = """
import json, sys, sysconfig
names = ("stdlib", "platstdlib", "purelib", "platlib")
prefixes = sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix
paths = [path for name in names if (path := sysconfig.get_path(name))]
print(json.dumps([sys.executable, prefixes, paths, sys.path]))
"""


def _this_interpreter() -> Interpreter:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    paths = tuple(path for name in names if (path := sysconfig.get_path(name)))
    return Interpreter(sys.executable, prefixes, paths, tuple(sys.path))


@cache
def _query_interpreter(python: Path) -> Interpreter:
    """Ask an interpreter for its paths; raise SandboxUnavailable if it does not run."""
    try:
        answer = subprocess.run(
            [python, "-I", "-c", _DESCRIBE], capture_output=True, check=True, timeout=60
        ).stdout
        executable, prefixes, paths, sys_path = json.loads(answer)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxUnavailable(f"The interpreter {python} does not run: {error}") from error
    return Interpreter(executable, tuple(prefixes), tuple(paths), tuple(sys_path))


def _interpreter(sandbox: Sandbox) -> Interpreter:
    # Not kept: a program's import path may change.
    return _this_interpreter() if sandbox.python is None else _query_interpreter(sandbox.python)


def _is_library(entry: Path, folders: Iterable[Path]) -> bool:
    if entry.name in {"site-packages", "dist-packages"}:
        return True
    return any(entry == folder or folder in entry.parents for folder in folders)


def _import_path(interpreter: Interpreter, extra: Iterable[Path]) -> list[str]:
    """``sys.path`` for the sandbox: ``extra``, then the interpreter's library folders.

    The current folder, a repository's root and other entries that may hold private files are
    left out; this package is importable without them.
    """
    folders = interpreter.folders
    kept = [entry for entry in interpreter.sys_path if entry and _is_library(Path(entry), folders)]
    return list(dict.fromkeys([*(str(path.resolve()) for path in extra), *kept]))


def _readable_paths(interpreter: Interpreter, extra: Iterable[Path]) -> list[str]:
    """Return every file and folder that the sandbox opens for reading."""
    entries = (Path(entry) for entry in _import_path(interpreter, ()))
    resolved = [path.resolve() for path in (*interpreter.folders, *entries, *extra)]
    return [*_SYSTEM, *dict.fromkeys(str(path) for path in (PACKAGE, *resolved))]


def _spec(
    module: str | None, payload: Mapping[str, Any], sandbox: Sandbox, *, fixed_size: bool
) -> dict[str, Any]:
    folder = sandbox.folder.resolve(strict=True)
    interpreter = _interpreter(sandbox)
    return {
        "module": module,
        "payload": dict(payload),
        "folder": str(folder),
        "readable": _readable_paths(interpreter, (*sandbox.import_paths, *sandbox.readable))
        + (gpu.readable() if sandbox.gpu else []),
        "listable": gpu.listable() if sandbox.gpu else [],
        "devices": gpu.devices() if sandbox.gpu else [],
        "gpu": sandbox.gpu,
        "sys_path": _import_path(interpreter, sandbox.import_paths),
        "package_parent": str(PACKAGE.parent),
        "prefix": interpreter.prefixes[0],
        "memory_bytes": sandbox.memory_bytes,
        "address_bytes": sandbox.address_bytes,
        "disk_bytes": sandbox.disk_bytes,
        "max_files": sandbox.max_files,
        "fixed_size": fixed_size,
        "max_threads": sandbox.max_threads,
        "cpu_seconds": sandbox.cpu_seconds,
        "unsafe_local": is_unsafe_local() and module is not None,
        **({"environment": _environment(sandbox, interpreter)} if _is_warm(sandbox) else {}),
    }


def _glfw_library(interpreter: Interpreter) -> str:
    """The window library that Gymnasium imports, and would start a program to find."""
    for entry in filter(None, interpreter.sys_path):
        bundled = Path(entry) / "glfw" / "x11" / "libglfw.so"
        if bundled.is_file():
            return str(bundled)
    return "libglfw.so.3"


def _environment(sandbox: Sandbox, interpreter: Interpreter) -> dict[str, str]:
    folder = str(sandbox.folder.resolve())
    own = {"HOME": folder, "TMPDIR": folder, "PYGLFW_LIBRARY": _glfw_library(interpreter)}
    if not sandbox.gpu:
        return {**_FIXED_ENV, **own, **sandbox.env}
    fixed = {name: v for name, v in _FIXED_ENV.items() if name != "CUDA_VISIBLE_DEVICES"}
    return {**fixed, **gpu.environment(), **own, **sandbox.env}


def _is_warm(sandbox: Sandbox) -> bool:
    usual = sandbox.python is None and not sandbox.gpu and not is_unsafe_local()
    return bool(sandbox.warm) and usual and hasattr(os, "pidfd_open")


def _spawn(sandbox: Sandbox, lines_in: int) -> Child:
    # Not -I: it would ignore PYTHONHASHSEED, and no variable of the caller's gets through anyway.
    script = str(Path(enter.__file__).resolve())
    try:
        interpreter = _interpreter(sandbox)
        command = [interpreter.executable, "-s", "-P", "-S", "-B", script]
        environment = _environment(sandbox, interpreter)
        if _is_warm(sandbox):
            paths = {"prefix": interpreter.prefixes[0], "package_parent": str(PACKAGE.parent),
                     "sys_path": _import_path(interpreter, ())}  # fmt: skip
            own = {name: environment[name] for name in environment.keys() - {"HOME", "TMPDIR"}}
            spec = {**paths, "modules": sandbox.warm}
            if child := fork(command, own, spec, lines_in):
                return child
        return Child(
            subprocess.Popen(
                [*command, str(lines_in)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(lines_in,),
                env=environment,
                cwd="/",
                start_new_session=True,
                bufsize=0,
            )
        )
    finally:
        os.close(lines_in)


def _start_process(
    module: str | None, payload: Mapping[str, Any], sandbox: Sandbox, *, fixed_size: bool = True
) -> SandboxedProcess:
    spec = _spec(module, payload, sandbox, fixed_size=fixed_size)
    lines_out, lines_in = os.pipe()
    process = SandboxedProcess(lambda: _spawn(sandbox, lines_in), lines_out, sandbox)
    try:
        process.send_spec(json.dumps({**spec, "parent_pid": process.parent_pid}).encode())
        process.layers = _first_line(process)
    except OSError:
        process.kill()
        if not fixed_size:
            raise
        # Its folder is not shown to this process: it writes to that on disk instead.
        return _start_process(module, payload, sandbox, fixed_size=False)
    except BaseException:
        process.kill("killed", "the parent was interrupted while it started the sandbox")
        raise
    return process


def _first_line(process: SandboxedProcess) -> dict[str, Any]:
    line = process.poll(_START_SECONDS)
    if line is None:
        process.kill("killed", f"the sandbox was not ready after {_START_SECONDS:g} s")
        ended = process.wait()
        raise SandboxUnavailable(f"The sandboxed process did not start: {ended.message}")
    answer: dict[str, Any] = json.loads(line)
    if "unavailable" in answer:
        process.wait()
        raise SandboxUnavailable(
            f"The sandbox cannot be built on this machine: {answer['unavailable']}. The code was "
            "not run. `--unsafe-local` runs it without a sandbox; only do that with code you trust."
        )
    process.begin(fixed_size="tmpfs" in answer["namespaces"])
    return {**answer, "cgroup": process.in_cgroup}


def start(module: str, payload: Mapping[str, Any], sandbox: Sandbox) -> SandboxedProcess:
    """Start a sandbox in which ``module.main(payload, send)`` runs.

    It has the libraries of this process, or those of ``sandbox.python``.

    ``payload`` travels as JSON; ``send(line)`` inside sends one line of bytes up, to
    ``SandboxedProcess.lines``. Returns when every layer is in place and before the module is
    imported; raises SandboxUnavailable if one of the required layers cannot be had.

    Use the result as a context manager: leaving the block kills what still runs.
    """
    return _start_process(module, payload, sandbox)


def run_worker(
    module: str,
    payload: Mapping[str, Any],
    sandbox: Sandbox,
    *,
    read: Callable[[bytes], Message],
    on_message: Callable[[Message, SandboxedProcess], None],
    on_tick: Callable[[], object] | None = None,
) -> SandboxedProcess:
    """Run a worker in a sandbox to its end, and return its process: how it ended, what it left.

    ``read`` turns a line into a message, and ``on_message`` gets each in turn, while the worker
    runs on; ``on_tick`` is called after each line and twice a second without one. What any of them
    raises kills the worker: UntrustedResultError for what is no message of it.
    """
    with start(module, payload, sandbox) as process:
        for line in process.lines(tick=None if on_tick is None else _TICK_SECONDS):
            if on_tick is not None:
                on_tick()
            if line is not None:
                on_message(read(line), process)
        process.wait()
    return process


@dataclass(frozen=True, slots=True)
class Layers:
    """What holds in a sandbox on this machine, as found by building one."""

    landlock_abi: int
    """0: none. See ``landlock`` for what each version adds."""
    seccomp: bool
    namespaces: tuple[str, ...]
    """Of user, mount, ipc and network; and "tmpfs", where the folder is one of fixed size."""
    cgroup: bool = False
    """Whether the kernel bounds the memory of the process as a whole; see ``cgroup``."""
    problem: str = ""
    """Why no sandbox can be built; empty where it can."""

    @property
    def available(self) -> bool:
        return self.landlock_abi >= 1 and self.seccomp and not self.problem

    def describe(self) -> list[str]:
        landlock = f"ABI {self.landlock_abi}" if self.landlock_abi else "missing"
        seccomp = "yes" if self.seccomp else "missing"
        network = "yes" if "network" in self.namespaces else "no"
        mount = "yes" if "mount" in self.namespaces else "no"
        lines = [
            f"Landlock: {landlock} (required; which files can be opened)",
            f"seccomp: {seccomp} (required; no network, no processes, few system calls)",
            f"network namespace: {network} (blocks the network a second time)",
            f"mount namespace: {mount} (hides files; no library loads from its folder)",
            "disk space: a tmpfs of fixed size (the kernel refuses more)"
            if "tmpfs" in self.namespaces
            else "disk space: counted (no tmpfs can be mounted here; the parent looks)",
            "memory: a limit on addresses, and counted (with a GPU, counted alone)",
            "cgroup v2: yes (the kernel bounds memory and threads as a whole)"
            if self.cgroup
            else "cgroup v2: no (what the kernel keeps for a process is bounded only roughly)",
        ]
        return [*lines, self.problem] if self.problem else lines


def start_gpu() -> tuple[list[str], str]:
    """Start the GPU's driver in a sandbox: the names of GPUs, or why it cannot be used there."""
    if not gpu.present():
        return [], f"there is no {gpu.CONTROL}"
    lines: list[bytes] = []
    with tempfile.TemporaryDirectory(prefix="p2p-sandbox-") as name:
        sandbox = Sandbox(
            folder=Path(name),
            gpu=True,
            memory_bytes=24 * GIB,
            wall_seconds=_START_SECONDS,
        )
        try:
            worker = run_worker(
                gpu.__name__, {}, sandbox, read=bytes, on_message=lambda line, _: lines.append(line)
            )
        except SandboxUnavailable as error:
            return [], str(error)
    end = worker.wait()
    if not end.ok or not lines:
        return [], end.message
    return [str(each) for each in json.loads(lines[-1])], ""


def choose_unsafe_local(times: int) -> None:
    """Take up ``--unsafe-local``, given so many times.

    Where the kernel has a sandbox, once is a question in a terminal, and elsewhere a ValueError:
    the flag is then most likely not needed, and not what was meant.
    """
    set_unsafe_local(False)
    if times == 1 and layers().available:
        question = "this kernel has a sandbox. Run the code WITHOUT it anyway?"
        if not _is_confirmed(f"--unsafe-local: {question} [y/N] "):
            raise ValueError(
                "--unsafe-local: this kernel has a sandbox, so leave the flag out; give it twice "
                "to run the code without a sandbox anyway"
            )
    set_unsafe_local(times > 0)


def _is_confirmed(question: str) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def layers() -> Layers:
    """Build a sandbox, leave it, and say what held. Never raises."""
    with tempfile.TemporaryDirectory(prefix="p2p-sandbox-") as name:
        try:
            with _start_process(None, {}, Sandbox(folder=Path(name))) as process:
                answer = process.layers
        except SandboxUnavailable as error:
            from p2p.sandbox import kernel, seccomp

            return Layers(kernel.landlock_abi(), seccomp.available(), (), problem=str(error))
    names = tuple(answer["namespaces"])
    return Layers(answer["landlock_abi"], answer["seccomp"], names, answer["cgroup"])
