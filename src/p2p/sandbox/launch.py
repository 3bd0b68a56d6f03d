"""Starting a sandboxed process."""

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
from p2p.sandbox.options import Sandbox, SandboxUnavailable
from p2p.sandbox.process import SandboxedProcess
from p2p.sandbox.readable import PACKAGE, import_path, readable_paths

if TYPE_CHECKING:
    from collections.abc import Mapping

_START_SECONDS = 60.0
_FIXED_ENV = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the same run twice iterates its sets in the same order
    "PYTHONUNBUFFERED": "1",
    "MUJOCO_GL": "disable",  # nothing is drawn here, and looking for a display starts programs
    "JAX_PLATFORMS": "cpu",  # device files are closed: do not look for them
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}

_launchers: list[ThreadPoolExecutor] = []


def _launcher() -> ThreadPoolExecutor:
    """The one thread that starts sandboxes.

    The kernel kills a sandboxed process when the *thread* that started it ends. This one lives as
    long as the program does, so that ``start`` may be called from a thread that does not.
    """
    if not _launchers:
        _launchers.append(ThreadPoolExecutor(max_workers=1, thread_name_prefix="p2p-sandbox"))
    return _launchers[0]


os.register_at_fork(after_in_child=_launchers.clear)


def _spec(module: str | None, payload: Mapping[str, Any], sandbox: Sandbox) -> bytes:
    folder = sandbox.folder.resolve(strict=True)
    return json.dumps(
        {
            "module": module,
            "payload": dict(payload),
            "parent_pid": os.getpid(),
            "folder": str(folder),
            "readable": readable_paths((*sandbox.import_paths, *sandbox.readable)),
            "sys_path": import_path(sandbox.import_paths),
            "package_parent": str(PACKAGE.parent),
            "prefix": sys.prefix,
            "memory_bytes": sandbox.memory_bytes,
            "disk_bytes": sandbox.disk_bytes,
            "max_threads": sandbox.max_threads,
            "cpu_seconds": sandbox.cpu_seconds,
            "unsafe_local": sandbox.unsafe_local,
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


def _environment(sandbox: Sandbox) -> dict[str, str]:
    folder = str(sandbox.folder.resolve())
    own = {"HOME": folder, "TMPDIR": folder, "PYGLFW_LIBRARY": _glfw_library()}
    return {**_FIXED_ENV, **own, **sandbox.env}


def _spawn(sandbox: Sandbox, lines_in: int) -> subprocess.Popen[bytes]:
    # Not -I: it would ignore PYTHONHASHSEED, and no variable of the caller's gets through anyway.
    script = str(Path(enter.__file__).resolve())
    return subprocess.Popen(
        [sys.executable, "-s", "-P", "-S", "-B", script, str(lines_in)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(lines_in,),
        env=_environment(sandbox),
        cwd="/",
        start_new_session=True,
        bufsize=0,
    )


def _kill_late(future: Future[subprocess.Popen[bytes]]) -> None:
    if not future.cancelled() and future.exception() is None:
        process = future.result()
        process.kill()
        process.wait()


def _start_process(
    module: str | None, payload: Mapping[str, Any], sandbox: Sandbox
) -> SandboxedProcess:
    spec = _spec(module, payload, sandbox)
    lines_out, lines_in = os.pipe()
    try:
        future = _launcher().submit(_spawn, sandbox, lines_in)
        try:
            popen = future.result()
        except BaseException:
            future.add_done_callback(_kill_late)
            os.close(lines_out)
            raise
    finally:
        os.close(lines_in)
    process = SandboxedProcess(popen, lines_out, sandbox)
    try:
        process.hand_over(spec)
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
    return answer


def start(module: str, payload: Mapping[str, Any], sandbox: Sandbox) -> SandboxedProcess:
    """Start a sandbox in which ``module.main(payload, send)`` runs, with the same libraries.

    ``payload`` travels as JSON; ``send(line)`` inside sends one line of bytes up, to
    ``SandboxedProcess.lines``. Returns when every layer is in place and before the module is
    imported; raises SandboxUnavailable if one of the required layers cannot be had.

    Use the result as a context manager: leaving the block kills what still runs.
    """
    process = _start_process(module, payload, sandbox)
    try:
        process.layers = _first_line(process)
        process.start_clock()
    except BaseException:
        process.kill()
        raise
    return process


def probe(folder: Path) -> dict[str, Any]:
    """The layers that hold in a sandbox that is built and left at once."""
    with _start_process(None, {}, Sandbox(folder=folder)) as process:
        return _first_line(process)
