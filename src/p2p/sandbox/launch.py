"""Starting a jailed process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2p.sandbox import enter
from p2p.sandbox.jail import Jail, JailUnavailable
from p2p.sandbox.process import JailedProcess
from p2p.sandbox.readable import PACKAGE, import_path, readable_paths

if TYPE_CHECKING:
    from collections.abc import Mapping

_START_SECONDS = 60.0
_FIXED_ENV = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the same run twice iterates its sets in the same order
    "PYTHONUNBUFFERED": "1",
    "MUJOCO_GL": "disable",  # nothing is drawn in a jail, and looking for a display starts programs
    "JAX_PLATFORMS": "cpu",  # device files are closed: do not look for them
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}

_launchers: list[ThreadPoolExecutor] = []


def _launcher() -> ThreadPoolExecutor:
    """The one thread that starts jails.

    The kernel kills a jailed process when the *thread* that started it ends. This one lives as
    long as the program does, so that ``start`` may be called from a thread that does not.
    """
    if not _launchers:
        _launchers.append(ThreadPoolExecutor(max_workers=1, thread_name_prefix="p2p-jail"))
    return _launchers[0]


os.register_at_fork(after_in_child=_launchers.clear)


def _spec(module: str | None, payload: Mapping[str, Any], jail: Jail) -> bytes:
    folder = jail.folder.resolve(strict=True)
    return json.dumps(
        {
            "module": module,
            "payload": dict(payload),
            "parent_pid": os.getpid(),
            "folder": str(folder),
            "readable": readable_paths((*jail.import_paths, *jail.readable)),
            "sys_path": import_path(jail.import_paths),
            "package_parent": str(PACKAGE.parent),
            "prefix": sys.prefix,
            "memory_bytes": jail.memory_bytes,
            "disk_bytes": jail.disk_bytes,
            "max_threads": jail.max_threads,
            "cpu_seconds": jail.cpu_seconds,
            "unsafe_local": jail.unsafe_local,
        }
    ).encode()


def _glfw_library() -> str:
    """The window library that Gymnasium imports, and would start a program to find."""
    spec = importlib.util.find_spec("glfw")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "x11" / "libglfw.so"
        if bundled.is_file():
            return str(bundled)
    return "libglfw.so.3"


def _environment(jail: Jail) -> dict[str, str]:
    folder = str(jail.folder.resolve())
    own = {"HOME": folder, "TMPDIR": folder, "PYGLFW_LIBRARY": _glfw_library()}
    return {**_FIXED_ENV, **own, **jail.env}


def _spawn(jail: Jail, lines_in: int) -> subprocess.Popen[bytes]:
    # Not -I: it would ignore PYTHONHASHSEED, and no variable of the caller's gets through anyway.
    script = str(Path(enter.__file__).resolve())
    return subprocess.Popen(
        [sys.executable, "-s", "-P", "-S", "-B", script, str(lines_in)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(lines_in,),
        env=_environment(jail),
        cwd="/",
        start_new_session=True,
        bufsize=0,
    )


def _kill_late(future: Future[subprocess.Popen[bytes]]) -> None:
    if not future.cancelled() and future.exception() is None:
        process = future.result()
        process.kill()
        process.wait()


def _start_process(module: str | None, payload: Mapping[str, Any], jail: Jail) -> JailedProcess:
    spec = _spec(module, payload, jail)
    lines_out, lines_in = os.pipe()
    try:
        future = _launcher().submit(_spawn, jail, lines_in)
        try:
            popen = future.result()
        except BaseException:
            future.add_done_callback(_kill_late)
            os.close(lines_out)
            raise
    finally:
        os.close(lines_in)
    process = JailedProcess(popen, lines_out, jail)
    try:
        process.hand_over(spec)
    except BaseException:
        process.kill("killed", "the parent was interrupted while it started the jail")
        raise
    return process


def _first_line(process: JailedProcess) -> dict[str, Any]:
    line = process.poll(_START_SECONDS)
    if line is None:
        process.kill("killed", f"the jail was not ready after {_START_SECONDS:g} s")
        ended = process.wait()
        raise JailUnavailable(f"The jailed process did not start: {ended.message}")
    answer: dict[str, Any] = json.loads(line)
    if "unavailable" in answer:
        process.wait()
        raise JailUnavailable(
            f"The jail cannot be built on this machine: {answer['unavailable']}. The code was "
            "not run. `--unsafe-local` runs it without a jail; only do that with code you trust."
        )
    return answer


def start(module: str, payload: Mapping[str, Any], jail: Jail) -> JailedProcess:
    """Start a jail in which ``module.main(payload, send)`` runs, with the same libraries.

    ``payload`` travels as JSON; ``send(line)`` inside sends one line of bytes up, to
    ``JailedProcess.lines``. Returns when every layer is in place and before the module is
    imported; raises JailUnavailable if one of the required layers cannot be had.

    Use the result as a context manager: leaving the block kills what still runs.
    """
    process = _start_process(module, payload, jail)
    try:
        process.layers = _first_line(process)
        process.start_clock()
    except BaseException:
        process.kill()
        raise
    return process


def probe(folder: Path) -> dict[str, Any]:
    """The layers that hold in a jail that is built and left at once."""
    with _start_process(None, {}, Jail(folder=folder)) as process:
        return _first_line(process)
