"""What stands on a node of a Ray cluster for one launch: holds its resources, starts it, copies.

Ray is given this class as it is written here, with all it needs: nothing but the standard library
may be imported until `install` has brought the package. The program runs beside the actor, under an
attendant with a short lease that the actor renews: if the actor dies, the program does not go on
unseen.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2p.scheduler.node_bootstrap import unpack

if TYPE_CHECKING:
    from p2p.scheduler.copying import Answer, Stamp, Want

LEASE_S = 15.0
"""The program ends so long after its actor died."""
RENEWED_EVERY_S = 2.0


class LaunchActor:
    """One launch on its node.

    Args:
        launch_id: which.
        folder: its folder below the runs folder.
        owner: a name for the scheduler it belongs to.
        base_dir: a folder for ours on the node; None: one in its folder for temporary files.
        python: the interpreter there; None: the one that Ray's workers run in.
        silence_s: the launch is ended, and its place given up, when nobody has asked for so long.
    """

    def __init__(
        self,
        launch_id: str,
        folder: str,
        owner: str,
        base_dir: str | None,
        python: str | None,
        silence_s: float,
    ) -> None:
        self.launch_id = launch_id
        ours = Path(base_dir or Path(tempfile.gettempdir()) / f"p2p-ray-{os.getuid()}")
        ours.mkdir(mode=0o700, parents=True, exist_ok=True)
        if ours.is_symlink() or ours.stat().st_uid != os.getuid():
            raise PermissionError(f"{ours} does not belong to this user")
        self.base = ours / owner
        self.path = self.base / "launches" / launch_id
        self.runs_dir = self.path / "runs"
        self.folder = self.runs_dir / folder
        self.python = python or sys.executable
        self.silence_s = silence_s
        self.asked = time.monotonic()
        self.started = False
        self.cancelled = False
        threading.Thread(target=self._keep, name="keeper", daemon=True).start()

    def install(self, digest: str, package: bytes | None) -> bool:
        """Import the package from here on; False if it is not here and was not given."""
        self.asked = time.monotonic()
        place = self.base / "packages" / digest
        if not place.is_dir():
            if package is None:
                return False
            unpack(self.base, digest, package)
        os.environ["PYTHONPATH"] = str(place)  # the program's
        sys.path.insert(0, str(place))
        return True

    def lacks(self, stamps: Mapping[str, Stamp]) -> list[Want]:
        """What has to be sent so that the folder here is like the one with these stamps."""
        from p2p.scheduler import copying

        self.asked = time.monotonic()
        return copying.wanted(self.folder, stamps)

    def take(self, wants: Sequence[Want], answer: Answer) -> list[Want]:
        """Put into the folder what was sent; what has still to be sent."""
        from p2p.scheduler import copying

        self.asked = time.monotonic()
        copying.put(self.folder, answer)
        return copying.still_wanted(self.folder, wants, answer)

    def start(self, launch: str, secrets: Mapping[str, str]) -> None:
        """Start it, unless it was started or cancelled before."""
        from p2p.scheduler import launching
        from p2p.scheduler.records import Launch

        self.asked = time.monotonic()
        if self.cancelled:
            return
        launching.start(
            self.base, Launch.model_validate_json(launch), self.runs_dir, secrets, self.python,
            lease_s=LEASE_S,
        )  # fmt: skip
        self.started = True

    def report(self) -> dict[str, Any]:
        """How it stands; absent as long as nobody has started it."""
        self.asked = time.monotonic()
        return self._report()

    def _report(self) -> dict[str, Any]:
        if not self.started:
            return {"state": "cancelled" if self.cancelled else "absent"}
        from p2p.scheduler import launching

        return launching.report(self.base, self.launch_id).model_dump()

    def cancel(self) -> None:
        """End it; one that was not started never will be."""
        self.asked = time.monotonic()
        self.cancelled = True
        if self.started:
            from p2p.scheduler import launching

            launching.cancel(self.base, self.launch_id)

    def log(self, offset: int, limit: int) -> bytes:
        """What it wrote to standard output and error, from this byte on."""
        self.asked = time.monotonic()
        if not self.started:
            return b""
        from p2p.scheduler import launching

        return launching.read_log(self.base, self.launch_id, offset, limit)

    def stamps(self) -> dict[str, Stamp]:
        """The files of its folder."""
        from p2p.scheduler import copying

        self.asked = time.monotonic()
        return copying.scan(self.folder)

    def pieces(self, wants: Sequence[Want]) -> Answer:
        """What is wanted of its folder."""
        from p2p.scheduler import copying

        self.asked = time.monotonic()
        return copying.pieces(self.folder, wants)

    def clean(self) -> None:
        """Remove its files; all of them were fetched."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _keep(self) -> None:
        """Renew the program's lease as long as somebody asks; afterwards give up the place."""
        while True:
            time.sleep(RENEWED_EVERY_S)
            if time.monotonic() - self.asked < self.silence_s:
                self._report()  # renews it
            elif self._is_over():
                os._exit(0)

    def _is_over(self) -> bool:
        """Whether nothing runs; asks in a way that renews no lease."""
        if not self.started:
            return True
        from p2p.scheduler.control import Control

        control = Control(self.base, self.launch_id)
        return not control.claim_is_held()
