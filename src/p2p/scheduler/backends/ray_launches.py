"""Launches on a Ray cluster: an actor for each, with the launch's id for its name.

Ray lets only one actor have a name, so asking twice starts once, and whoever comes later finds it.
The actor waits in Ray's queue until a node has room; then the launch's folder is sent there through
the object store and the program is started. Calls block, and a cluster that goes away ends the
process, so all this has a process of its own (see `ray_bridge`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from p2p.scheduler import copying
from p2p.scheduler.backends.ray_actors import ActorGone, Cluster, RayActors, RayTrouble
from p2p.scheduler.backends.ray_notes import Notes
from p2p.scheduler.package_wheel import Wheel
from p2p.scheduler.records import Launch, LaunchReport

ANSWER_S = 20.0
"""For an actor to answer; after that its node counts as out of reach for now."""
ROOM_S = 2.0
"""For an actor that may still wait for room: whether it does is seen by its silence."""
COPY_S = 300.0
"""For one load of files."""
LOG_BYTES = 4 * 2**20
OVER = ("exited", "cancelled", "lost")


class RayLaunches:
    """The launches of one cluster; raises RayTrouble if that cannot be reached.

    Args:
        cluster: which.
        package: ours, for nodes that do not have it.
    """

    def __init__(self, cluster: Cluster, package: Wheel) -> None:
        self._cluster = cluster
        self._package = package
        self._lock = threading.Lock()
        self.actors = RayActors(cluster)
        self._beginnings: dict[str, Future[None]] = {}
        self._collecting: dict[str, threading.Lock] = {}
        self._threads = ThreadPoolExecutor(1024, thread_name_prefix="begin")

    def submit(self, launch: Launch, secrets: Mapping[str, str]) -> None:
        """Put it into Ray's queue, unless it was there or cancelled before."""
        notes = self._notes(launch.launch_id)
        if notes.end() is not None or notes.has("cancelled"):
            return
        with self._lock:
            beginning = self._beginnings.get(launch.launch_id)
            if beginning is not None and not beginning.done():
                return
            actor = self.actors.find(launch.launch_id)
            if actor is None:
                if notes.has("begun"):
                    return  # lost, as its status will say
                actor = self.actors.make(launch)
            self._beginnings[launch.launch_id] = self._threads.submit(
                self._begin, actor, launch, dict(secrets)
            )

    def _begin(self, actor: Any, launch: Launch, secrets: dict[str, str]) -> None:
        """Wait for the actor's node, send the folder there, and start the program."""
        if self.actors.get(actor.report.remote(), None)["state"] != "absent":
            return  # started before; what its folder holds now is newer than ours
        package = self._package
        if not self.actors.get(actor.install.remote(package.digest, None), ANSWER_S):
            self.actors.get(actor.install.remote(package.digest, package.data), COPY_S)
        source = launch.runs_dir / launch.spec.folder
        self._send(actor, source, self.actors.get(actor.lacks.remote(copying.scan(source)), COPY_S))
        notes = self._notes(launch.launch_id)
        # In this order, as `cancel` does it the other way round: one of the two sees the other.
        notes.note("begun")
        if not notes.has("cancelled"):
            self.actors.get(actor.start.remote(launch.model_dump_json(), secrets), COPY_S)

    def _send(self, actor: Any, source: Path, wants: Sequence[copying.Want]) -> None:
        while wants:
            answer = copying.pieces(source, wants)
            wants = self.actors.get(actor.take.remote(wants, answer), COPY_S)

    def status(self, launch_id: str) -> LaunchReport:
        """How it stands."""
        notes = self._notes(launch_id)
        if (end := notes.end()) is not None:
            return end
        beginning = self._beginnings.get(launch_id)
        if beginning is not None and not beginning.done():
            if notes.has("cancelled") and not notes.has("begun"):
                return LaunchReport(state="cancelled", message="cancelled before it was started")
            return LaunchReport(state="waiting", message="waits for room in the Ray cluster")
        why = "its actor is gone"
        if beginning is not None:
            del self._beginnings[launch_id]
            if (error := beginning.exception()) is not None:
                why = f"{launch_id} could not be started: {error}"
                if not (notes.has("begun") or notes.has("cancelled")):
                    self.actors.forget(launch_id)
                    raise RayTrouble(why) from error
        return self._asked(launch_id, notes, why)

    def _asked(self, launch_id: str, notes: Notes, why: str) -> LaunchReport:
        actor = self.actors.find(launch_id)
        if actor is None:
            return self._without_actor(notes, why)
        begun = notes.has("begun")
        try:
            answer = self.actors.get(actor.report.remote(), ANSWER_S if begun else ROOM_S)
        except ActorGone as gone:
            self.actors.forget(launch_id)
            return self._without_actor(notes, str(gone))
        except RayTrouble:
            if begun:
                raise
            return LaunchReport(state="waiting", message="waits for room in the Ray cluster")
        report = LaunchReport(**answer)
        if report.state == "absent":
            # Whoever was to start it died before, or failed. It must not keep its room.
            self.actors.remove(launch_id, actor)
            return self._without_actor(notes, why)
        return report

    def _without_actor(self, notes: Notes, why: str) -> LaunchReport:
        if notes.has("cancelled"):
            end = LaunchReport(state="cancelled")
        elif notes.has("begun"):
            end = LaunchReport(state="lost", message=why[:500])
        else:
            return LaunchReport(state="absent", never_began=True)
        notes.note_end(end)
        return end

    def cancel(self, launch_id: str) -> None:
        """End it; one that has not begun never will."""
        notes = self._notes(launch_id)
        notes.note("cancelled")
        actor = None if notes.end() is not None else self.actors.find(launch_id)
        if actor is None:
            return
        if not notes.has("begun"):
            self.actors.remove(launch_id, actor)
            return
        try:
            self.actors.get(actor.cancel.remote(), ANSWER_S)
        except ActorGone:
            self.actors.forget(launch_id)

    def logs(self, launch_id: str, offset: int) -> bytes:
        """Some of what it wrote, from this byte on; nothing when there is no more."""
        notes = self._notes(launch_id)
        actor = None if notes.end() is not None else self.actors.find(launch_id)
        if actor is not None and notes.has("begun"):
            try:
                data: bytes = self.actors.get(actor.log.remote(offset, LOG_BYTES), ANSWER_S)
            except ActorGone:
                self.actors.forget(launch_id)
            else:
                return data
        return notes.read_log(offset, LOG_BYTES)

    def collect(self, launch: Launch) -> None:
        """Bring what is new. After its end, nothing of it is left in the cluster."""
        notes = self._notes(launch.launch_id)
        with self._collecting.setdefault(launch.launch_id, threading.Lock()):
            actor = self.actors.find(launch.launch_id) if notes.has("begun") else None
            if actor is None or notes.end() is not None:
                return
            try:
                # First, so that all of one that is over comes with it.
                report = LaunchReport(**self.actors.get(actor.report.remote(), ANSWER_S))
                if report.state == "absent":
                    return
                self._fetch(actor, launch.runs_dir / launch.spec.folder)
                self._fetch_log(actor, notes)
                if report.state in OVER:
                    notes.note_end(report)
                    self.actors.get(actor.clean.remote(), ANSWER_S)
                    self.actors.remove(launch.launch_id, actor)
            except ActorGone:
                self.actors.forget(launch.launch_id)

    def _fetch(self, actor: Any, target: Path) -> None:
        stamps = self.actors.get(actor.stamps.remote(), COPY_S)
        self._send(actor, target, copying.new_orders(target, stamps))
        wants = copying.wanted(target, stamps)
        while wants:
            answer = self.actors.get(actor.pieces.remote(wants), COPY_S)
            copying.put(target, answer)
            wants = copying.still_wanted(target, wants, answer)

    def _fetch_log(self, actor: Any, notes: Notes) -> None:
        with notes.log.open("ab") as stream:
            while data := self.actors.get(actor.log.remote(stream.tell(), LOG_BYTES), ANSWER_S):
                stream.write(data)

    def _notes(self, launch_id: str) -> Notes:
        return Notes(Path(self._cluster.notes), launch_id)
