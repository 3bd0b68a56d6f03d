"""What runs first in the sandboxed process: confine, report, then call the module.

Run as a script by ``launch``, with the number of the pipe to write lines to as its argument and
one line of JSON on standard input. It confines itself while it has one thread and before it loads
a library or a line of foreign code, says so, and goes on in the same interpreter once standard
input is closed.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import resource
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_RAISED, EXIT_MEMORY, EXIT_NO_SANDBOX = 1, 113, 114
MAX_LINE_BYTES = 4 << 20
_OPEN_FILES = 256
_OPEN_FILES_WITH_GPU = 2048
_LOCKED_WITH_GPU = 64 << 20
"""Bytes: a driver pins what it copies to and from."""
_STACK = 64 << 20
"""Not counted by RLIMIT_DATA, wherever the stack is moved to."""


def _die_with_parent(parent_pid: int) -> None:
    from p2p.sandbox import kernel

    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the kernel knew that we want to be told
        os._exit(EXIT_NO_SANDBOX)


def _raise_oom_score() -> None:
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write("1000")
    except OSError:
        pass  # a courtesy to the parent, not a layer


def _set_limits(spec: dict[str, Any], *, own_user: bool) -> None:
    """Set the kernel's limits on this process, hard.

    The limit on threads counts all processes of the user: it is only set where the user namespace
    makes this process the only one.
    """
    memory = spec["memory_bytes"]
    bounds = {
        resource.RLIMIT_DATA: memory,
        resource.RLIMIT_FSIZE: spec["disk_bytes"],
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_STACK: _STACK,
    }
    if spec["gpu"]:
        bounds[resource.RLIMIT_NOFILE] = _OPEN_FILES_WITH_GPU
        bounds[resource.RLIMIT_MEMLOCK] = _LOCKED_WITH_GPU
    if own_user:
        bounds[resource.RLIMIT_NPROC] = spec["max_threads"]
    for kind, value in bounds.items():
        _lower(kind, value)
    if spec["cpu_seconds"] is not None:
        soft = max(1, math.ceil(spec["cpu_seconds"]))
        resource.setrlimit(resource.RLIMIT_CPU, (soft, soft + 1))


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (bound, bound))


def _bound_addresses(spec: dict[str, Any]) -> None:
    """Let the process map no more than its memory, and what its libraries map besides.

    RLIMIT_DATA does not count stacks, which can be split into many, nor what was filled and then
    made read-only. Call it with the libraries loaded: what they map is not of the code's choosing.
    """
    if spec["gpu"]:  # host and device memory have one range of addresses, reserved at once
        return
    with open("/proc/self/status", "rb") as file:  # noqa: PTH123
        lines = [line.split() for line in file if line.startswith(b"Vm")]
    mapped = {line[0]: int(line[1]) << 10 for line in lines}
    libraries = mapped[b"VmSize:"] - mapped[b"VmData:"]
    _lower(resource.RLIMIT_AS, libraries + spec["memory_bytes"] + spec["address_bytes"])


def confine(spec: dict[str, Any]) -> dict[str, Any]:
    """Put this process in the sandbox that ``spec`` describes; returns the layers that hold."""
    folder = spec["folder"]
    _raise_oom_score()
    if spec["unsafe_local"]:
        _set_limits(spec, own_user=False)
        _die_with_parent(spec["parent_pid"])
        os.chdir(folder)
        return {"landlock_abi": 0, "seccomp": False, "namespaces": []}
    from p2p.sandbox import kernel, seccomp

    if not seccomp.available():
        raise OSError("this kernel does not filter system calls (seccomp)")
    # A thread's name is written there, and CUDA does not start where it cannot name its threads.
    threads = [f"/proc/{os.getpid()}/task"] if spec["gpu"] else []
    size = (spec["disk_bytes"], spec["max_files"]) if spec["fixed_size"] else None
    entered = kernel.enter_namespaces(folder, threads, size)
    os.chdir(folder)
    _set_limits(spec, own_user="user" in entered)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    _die_with_parent(spec["parent_pid"])
    version = kernel.restrict_files(
        # Beside the names are the connections of the network that this process is in: its own.
        [*spec["readable"], *(threads if "network" in entered else ())],
        folder,
        listable=spec["listable"],
        writable=threads,
        devices=spec["devices"],
    )
    seccomp.restrict(gpu=spec["gpu"])
    return {"landlock_abi": version, "seccomp": True, "namespaces": entered}


def _sender(pipe: int) -> Callable[[bytes], None]:
    lock = threading.Lock()

    def send(line: bytes) -> None:
        """Send one line up to the process that started the sandbox."""
        if not line or b"\n" in line or len(line) > MAX_LINE_BYTES:
            raise ValueError(f"a line has 1 to {MAX_LINE_BYTES} bytes and no line break")
        data = memoryview(line + b"\n")
        with lock:
            while data:
                data = data[os.write(pipe, data) :]

    return send


def prepare(spec: dict[str, Any]) -> None:
    """Make the project importable, although the folder around it may not be read in the sandbox."""
    sys.prefix = spec["prefix"]
    sys.path[:] = [spec["package_parent"], *spec["sys_path"]]
    importlib.import_module("p2p.sandbox")
    sys.path[:] = spec["sys_path"]


def _wait_for_parent() -> None:
    """Wait until it has the folder in hand; standard input is then empty."""
    os.read(0, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def run(spec: dict[str, Any], pipe: int) -> int:
    """Confine and call ``module.main(payload, send)``; returns the exit status."""
    prepare(spec)
    if "environment" in spec:  # of a server that forks for many
        os.environ.clear()
        os.environ.update(spec["environment"])
    send = _sender(pipe)
    try:
        layers = confine(spec)
    except OSError as error:
        send(json.dumps({"unavailable": str(error)}).encode())
        return EXIT_NO_SANDBOX
    send(json.dumps(layers).encode())
    _wait_for_parent()
    if spec["module"] is None:
        os.write(pipe, b"\n")
        return 0
    import faulthandler

    faulthandler.enable()  # a crash in C code names the Python lines that led there
    try:
        module = importlib.import_module(spec["module"])
        _bound_addresses(spec)
        module.main(spec["payload"], send)
    except MemoryError:
        traceback.print_exc()
        return EXIT_MEMORY
    except BaseException:  # noqa: BLE001  (sys.exit in foreign code is an error, too)
        traceback.print_exc()
        return EXIT_RAISED
    os.write(pipe, b"\n")  # an empty line: the module came to its end
    return 0


def read_spec() -> dict[str, Any]:
    """The line on standard input that says what to do; the parent sends no more before it hears."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 1 << 16)
        if not more:
            os._exit(EXIT_NO_SANDBOX)  # the parent has died
        line += more
    spec: dict[str, Any] = json.loads(line)
    return spec


def _main() -> None:
    spec, pipe = read_spec(), int(sys.argv[1])
    if "modules" in spec:
        prepare(spec)
        importlib.import_module("p2p.sandbox.fork_server").serve(spec["modules"], pipe)
    status = run(spec, pipe)
    sys.stdout.flush()
    sys.stderr.flush()
    # Exit handlers and threads of foreign code get no say in how the process ends.
    os._exit(status)


if __name__ == "__main__":
    _main()
