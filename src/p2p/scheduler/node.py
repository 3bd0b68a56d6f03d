"""What is done on another machine for its scheduler: `python -m p2p.scheduler.node BASE OPERATION`.

Arguments come as a JSON object through standard input, so that no secret is on a command line; the
answer is the last line of standard output, also JSON. Each call is a process of its own and knows
nothing; launches are found by their names. An actor on a Ray cluster calls the same functions.

    base/packages/<digest>/         this program, as its scheduler has it
    base/launches/<id>/             the folder of a launch
    base/launches/<id>/runs/        the runs folder of that launch alone
    base/launches/<id>/incoming/    files on their way there
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from p2p.scheduler.launch import LaunchError, LaunchFile, LaunchFolder, forget_released
from p2p.scheduler.machine import machine


def _prepare(launch: LaunchFolder) -> Any:
    """What has become of it; if nothing yet, files can be sent to it."""
    status = launch.status()
    if status.state == "absent":
        launch.make()
        (launch.path / "incoming").mkdir(exist_ok=True)
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


def _scan(launch: LaunchFolder, folder: str, held: Mapping[str, Sequence[Any]]) -> Any:
    """The files of a run's folder; see `copying.scan`."""
    from p2p.scheduler import copying  # slow, and what is asked most often is for statuses

    known = {path: copying.FileStamp(*stamp) for path, stamp in held.items()}
    return copying.scan(launch.runs_dir / folder, known)


def _read(launch: LaunchFolder, folder: str, path: str, offset: int, length: int) -> bytes:
    from p2p.scheduler import copying

    return copying.read_chunk(launch.runs_dir / folder / path, offset, length)


def _write(launch: LaunchFolder, name: str, data: bytes, offset: int) -> None:
    """Part of a file that is sent; `place` puts it in its place."""
    from p2p.scheduler import copying

    copying.write_chunk(launch.path / "incoming" / name, data, offset)


def _place(launch: LaunchFolder, folder: str, files: Mapping[str, Sequence[Any]]) -> None:
    """Move what was sent to its place; by its name in `incoming`, its path and time of change."""
    from p2p.scheduler import copying

    for name, (path, mtime_ns) in files.items():
        copying.place(launch.runs_dir / folder, path, launch.path / "incoming" / name, mtime_ns)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "prepare": _prepare,
    "start": _start,
    "cancel": LaunchFolder.cancel,
    "log": LaunchFolder.read_log,
    "release": _release,
    "remove": _remove,
    "scan": _scan,
    "read": _read,
    "write": _write,
    "place": _place,
}
"""What can be done with a launch."""


def perform(base: Path, operation: str, launch_id: str = "", **arguments: Any) -> Any:
    """Do something with a launch, look at many of them, or at the machine."""
    if operation == "machine":
        return machine(**arguments)
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
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
