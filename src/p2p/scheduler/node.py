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


def _machine(_: Path, requirements: Sequence[str]) -> Any:
    return machine(requirements)


def _prepare(base: Path, launch_id: str) -> Any:
    """What has become of a launch; if nothing yet, files can be sent to it."""
    folder = LaunchFolder(base, launch_id)
    status = folder.status()
    if status.state == "absent":
        folder.make()
        (folder.path / "incoming").mkdir(exist_ok=True)
    return asdict(status)


def _start(
    base: Path, launch_id: str, launch: Mapping[str, Any], secrets: Mapping[str, str], python: str
) -> Any:
    folder = LaunchFolder(base, launch_id)
    folder.start(LaunchFile(**launch), secrets, python)
    return asdict(folder.status())


def _statuses(base: Path, launch_ids: Sequence[str]) -> Any:
    return {name: asdict(LaunchFolder(base, name).status()) for name in launch_ids}


def _cancel(base: Path, launch_id: str) -> Any:
    return LaunchFolder(base, launch_id).cancel()


def _log(base: Path, launch_id: str, offset: int, limit: int) -> Any:
    return LaunchFolder(base, launch_id).read_log(offset, limit)


def _release(base: Path, launch_id: str) -> Any:
    LaunchFolder(base, launch_id).release()
    forget_released(base)


def _remove(base: Path, launch_id: str) -> Any:
    """Leave nothing of it, where another place knows that it ran."""
    shutil.rmtree(LaunchFolder(base, launch_id).path, ignore_errors=True)


def _scan(base: Path, launch_id: str, folder: str, held: Mapping[str, Sequence[Any]]) -> Any:
    """The files of a run's folder; see `copying.scan`."""
    from p2p.scheduler import copying  # slow, and what is asked most often is for statuses

    known = {path: copying.FileStamp(*stamp) for path, stamp in held.items()}
    return copying.scan(LaunchFolder(base, launch_id).runs_dir / folder, known)


def _read(base: Path, launch_id: str, folder: str, path: str, offset: int, length: int) -> Any:
    from p2p.scheduler import copying

    return copying.read_chunk(
        LaunchFolder(base, launch_id).runs_dir / folder / path, offset, length
    )


def _write(base: Path, launch_id: str, name: str, data: bytes, offset: int) -> Any:
    """Part of a file that is sent; `place` puts it in its place."""
    from p2p.scheduler import copying

    copying.write_chunk(LaunchFolder(base, launch_id).path / "incoming" / name, data, offset)


def _place(base: Path, launch_id: str, folder: str, files: Mapping[str, Sequence[Any]]) -> Any:
    """Move what was sent to its place; by its name in `incoming`, its path and time of change."""
    from p2p.scheduler import copying

    launch = LaunchFolder(base, launch_id)
    for name, (path, mtime_ns) in files.items():
        source = launch.path / "incoming" / name
        copying.place(launch.runs_dir / folder, path, source, mtime_ns)


OPERATIONS: dict[str, Callable[..., Any]] = {
    function.__name__[1:]: function
    for function in (
        _machine, _prepare, _start, _statuses, _cancel, _log, _release, _remove,
        _scan, _read, _write, _place,
    )
}  # fmt: skip


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
        answer = {"result": OPERATIONS[operation](base, **json.load(sys.stdin))}
    # Whatever is wrong with a request is said to whoever made it.
    except (LaunchError, OSError, ValueError, KeyError, TypeError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
