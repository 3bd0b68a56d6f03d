"""A scheduler's hand on a node: does there what `launching` and `copying` do, on request.

It lives as long as its connection and knows nothing; launches are found by their names, and go on
without it.

    base/packages/<digest>/        this program, as its scheduler has it
    base/launches/<launch_id>/     the control folder of a launch
    base/launches/<launch_id>/runs the runs folder of that launch alone: attempts cannot mix
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import select
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import TypeAdapter

from p2p.scheduler import copying, launching
from p2p.scheduler.control import Control
from p2p.scheduler.machine import gpu_numbers
from p2p.scheduler.node_bootstrap import Message, receive, send
from p2p.scheduler.package_wheel import DISTRIBUTION
from p2p.scheduler.records import FolderName, Launch
from p2p.training.cpu_manager import default_pool

IDLE_S = 900.0
_FOLDER_NAME: TypeAdapter[str] = TypeAdapter(FolderName)


def serve(base: Path, arriving: BinaryIO, leaving: BinaryIO) -> None:
    """Answer requests until there are no more."""
    # A login's folder is cleared when the login ends; the locks of cores must stay.
    os.environ.pop("XDG_RUNTIME_DIR", None)
    launching.forget_released(base)
    send(leaving, {"ready": True})
    # Of a link that was cut this side never hears: nobody would end an agent that waits for ever.
    while select.select([arriving], [], [], IDLE_S)[0] and (request := receive(arriving)):
        fields, data = request
        try:
            answer, more = _OPERATIONS[fields["op"]](_Request(base, fields, data))
        # Whatever is wrong with a request is said to whoever made it.
        except (launching.LaunchError, OSError, ValueError, KeyError) as error:
            answer, more = {"error": f"{type(error).__name__}: {error}"}, b""
        send(leaving, answer, more)


def pieces_as_fields(answer: copying.Answer) -> Message:
    """Pieces as a message: what they are, and their bytes one after the other."""
    headers = [[piece.path, piece.offset, *piece.stamp, len(piece.data)] for piece in answer.pieces]
    data = b"".join(piece.data for piece in answer.pieces)
    return {"pieces": headers, "settled": answer.settled}, data


def pieces_from_fields(fields: dict[str, Any], data: bytes) -> copying.Answer:
    """Pieces from a message; raises ValueError for one that does not add up."""
    found = []
    start = 0
    for path, offset, size, mtime_ns, length in fields["pieces"]:
        if not isinstance(path, str) or min(offset, size, mtime_ns, length) < 0:
            raise ValueError(f"a piece of a file makes no sense: {path!r} {offset} {length}")
        stamp = copying.Stamp(int(size), int(mtime_ns))
        found.append(copying.Piece(path, int(offset), stamp, data[start : start + length]))
        start += length
    return copying.Answer(tuple(found), int(fields["settled"]))


@dataclass(frozen=True)
class _Request:
    base: Path
    fields: dict[str, Any]
    data: bytes

    @property
    def launch_id(self) -> str:
        return str(self.fields["launch_id"])

    @property
    def folder(self) -> Path:
        """That of the run, in the launch's own runs folder."""
        name = _FOLDER_NAME.validate_python(self.fields["folder"])
        return _runs_dir(self.base, self.launch_id) / name

    @property
    def wants(self) -> list[copying.Want]:
        return [copying.Want(**want) for want in self.fields["wants"]]


def _runs_dir(base: Path, launch_id: str) -> Path:
    return Control(base, launch_id).path / "runs"


def _machine(_: _Request) -> Message:
    return {
        "name": platform.node(),
        "cores": len(default_pool()),
        "gpus": len(gpu_numbers()),
        "python": platform.python_version(),
        "lacks": missing_packages(),
    }, b""


def missing_packages() -> list[str]:
    """What this program needs and the Python here does not have; extras aside."""
    found = []
    for requirement in importlib.metadata.requires(DISTRIBUTION) or []:
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        try:
            if "extra ==" not in requirement:
                importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            found.append(name)
    return found


def _start(request: _Request) -> Message:
    launch = Launch.model_validate(request.fields["launch"])
    launching.start(
        request.base,
        launch,
        _runs_dir(request.base, launch.launch_id),
        request.fields["secrets"],
        sys.executable,
        lease_s=request.fields["lease_s"],
    )
    return {}, b""


def _report(request: _Request) -> Message:
    report = launching.report(request.base, request.launch_id)
    return {"report": report.model_dump(mode="json")}, b""


def _cancel(request: _Request) -> Message:
    launching.cancel(request.base, request.launch_id)
    return {}, b""


def _release(request: _Request) -> Message:
    launching.release(request.base, request.launch_id)
    return {}, b""


def _log(request: _Request) -> Message:
    offset = int(request.fields["offset"])
    return {}, launching.read_log(request.base, request.launch_id, offset, copying.PIECES_BYTES)


def _wanted(request: _Request) -> Message:
    if Control(request.base, request.launch_id).read_claim() is not None:
        return {"wants": []}, b""  # it runs, or has: what is here is newer
    stamps = {path: copying.Stamp(*stamp) for path, stamp in request.fields["stamps"].items()}
    return {"wants": [asdict(want) for want in copying.wanted(request.folder, stamps)]}, b""


def _put(request: _Request) -> Message:
    answer = pieces_from_fields(request.fields, request.data)
    copying.put(request.folder, answer)
    left = copying.still_wanted(request.folder, request.wants, answer)
    return {"wants": [asdict(want) for want in left]}, b""


def _scan(request: _Request) -> Message:
    return {"stamps": copying.scan(request.folder)}, b""


def _pieces(request: _Request) -> Message:
    return pieces_as_fields(copying.pieces(request.folder, request.wants))


_OPERATIONS: dict[str, Callable[[_Request], Message]] = {
    "machine": _machine,
    "start": _start,
    "report": _report,
    "cancel": _cancel,
    "release": _release,
    "log": _log,
    "wanted": _wanted,
    "put": _put,
    "scan": _scan,
    "pieces": _pieces,
}
