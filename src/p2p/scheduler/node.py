"""What is done on another machine for its scheduler: `python -m p2p.scheduler.node BASE OPERATION`.

Arguments come as a JSON object through standard input, so that no secret is on a command line; the
answer is the last line of standard output, also JSON. Each call is a process of its own and knows
nothing; launches are found by their names. An actor on a Ray cluster calls the same functions.

    base/packages/<digest>/         this program, as its scheduler has it
    base/launches/<id>/             the folder of a launch
    base/launches/<id>/runs/        the runs folder of that launch alone
"""

from __future__ import annotations

import base64
import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from p2p.scheduler.launch import LaunchError, LaunchFile, LaunchFolder, forget_released
from p2p.training.cpu_manager import default_pool, gpu_numbers


def _prepare(launch: LaunchFolder, folder: str = "") -> Any:
    """The status of a launch; makes its folder where it is absent, for files to be sent."""
    status = launch.status()
    if status.state == "absent":
        launch.make()
        (launch.runs_dir / folder).mkdir(parents=True, exist_ok=True)
    return asdict(status)


def _start(
    launch: LaunchFolder, file: Mapping[str, Any], secrets: Mapping[str, str], python: str
) -> Any:
    launch.start(LaunchFile(**file), secrets, python)
    return asdict(launch.status())


def _release(launch: LaunchFolder) -> None:
    launch.release()
    forget_released(launch.base)


def _remove(launch: LaunchFolder) -> None:
    """Leave nothing of it, where another place knows that it ran."""
    shutil.rmtree(launch.path, ignore_errors=True)


def _pack(
    launch: LaunchFolder, archive: str, folder: str, known: Mapping[str, tuple[int, int]]
) -> int:
    """Put what is not as `known` of a run's folder into an archive; returns the archive's size."""
    from p2p.scheduler import transfer  # slow, and what is asked most often is for statuses

    transfer.pack(launch.runs_dir / folder, launch.path / archive, known)
    return (launch.path / archive).stat().st_size


def _read(launch: LaunchFolder, archive: str, offset: int, length: int) -> bytes:
    """Return a part of what was packed; the archive goes with its last part."""
    with (launch.path / archive).open("rb") as stream:
        stream.seek(offset)
        data = stream.read(length)
        if not stream.read(1):
            (launch.path / archive).unlink()
        return data


def _write(launch: LaunchFolder, archive: str, data: bytes, offset: int) -> None:
    """Add to an archive that is sent; `unpack` opens it."""
    with (launch.path / archive).open("r+b" if offset else "wb") as stream:
        stream.seek(offset)
        stream.write(data)


def _unpack(launch: LaunchFolder, archive: str, folder: str, *, keep: bool) -> None:
    from p2p.scheduler import transfer

    transfer.unpack(launch.path / archive, launch.runs_dir / folder, keep=keep)
    (launch.path / archive).unlink()


OPERATIONS: dict[str, Callable[..., Any]] = {
    "prepare": _prepare,
    "start": _start,
    "cancel": LaunchFolder.cancel,
    "log": LaunchFolder.read_log,
    "release": _release,
    "remove": _remove,
    "pack": _pack,
    "read": _read,
    "write": _write,
    "unpack": _unpack,
}
"""What can be done with a launch."""


def describe_machine(requirements: Iterable[str] = ()) -> dict[str, Any]:
    """This machine: name, cores, GPUs, Python, and which of these requirements it lacks."""
    missing = []
    for requirement in requirements:
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        try:
            if "extra ==" not in requirement:
                importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    return {
        "name": platform.node(),
        "cores": len(default_pool()),
        "gpus": len(gpu_numbers()),
        "python": platform.python_version(),
        "missing": missing,
        "rsync": shutil.which("rsync") is not None,
    }


def perform(base: Path, operation: str, launch_id: str = "", **arguments: Any) -> Any:
    """Do something with a launch, look at many of them, or at the machine."""
    if operation == "machine":
        return describe_machine(**arguments)
    if operation == "statuses":
        names = arguments["launch_ids"]
        return {name: asdict(LaunchFolder(base, name).status()) for name in names}
    return OPERATIONS[operation](LaunchFolder(base, launch_id), **arguments)


def main() -> None:
    """Answer one request."""
    base, operation = Path(sys.argv[1]), sys.argv[2]
    os.umask(0o077)
    # A login's folder is cleared when the login ends; the locks of cores must stay.
    os.environ.pop("XDG_RUNTIME_DIR", None)
    package = str(Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (package, os.environ.get("PYTHONPATH")))
    )
    try:
        answer = {"result": perform(base, operation, **json.load(sys.stdin))}
    # Whatever is wrong with a request is said to whoever made it.
    except (LaunchError, OSError, ValueError, KeyError, TypeError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write("\n" + json.dumps(answer, default=_encode) + "\n")


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


if __name__ == "__main__":
    main()
