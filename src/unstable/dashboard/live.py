"""The view of a run from its parts: objects of this process, or the actors of a Ray cluster.

A process of its own asks a cluster (`python -m unstable.dashboard.live`): Ray ends a process whose
cluster has gone, and writes to its terminal. Neither must happen to a dashboard.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from typing import Any, TextIO

from unstable.dashboard.view import SourceError, View, local_gpus, make_view
from unstable.utils.files import to_json

SECONDS = 10.0
"""For an actor to answer; one that is busy for longer is asked again later."""


class LiveParts:
    """A source of views.

    Args:
        tracker: a Tracker, or the handle of one.
        step_buffer: a StepBuffer, or the handle of one; without it the buffer's size is the one
            that the tracker was last told.
    """

    def __init__(self, tracker: Any, step_buffer: Any = None) -> None:
        self._tracker, self._step_buffer = tracker, step_buffer

    def fetch(self) -> View:
        info, buffer = self.ask()
        return make_view(info, buffer=buffer, gpus=local_gpus())

    def ask(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """What the tracker says, and what the buffer does, if there is one."""
        info = _ask(self._tracker, "tracker", "get_interface_info")
        if self._step_buffer is None:
            return info, None
        try:
            return info, _ask(self._step_buffer, "step buffer", "stats")
        except SourceError:  # without it the tracker still has nearly everything
            return info, None

    def close(self) -> None:
        """The parts are not ours."""


def _ask(target: Any, name: str, method: str) -> dict[str, Any]:
    bound = getattr(target, method)
    if not hasattr(bound, "remote"):
        return dict(bound())
    import ray

    try:
        return dict(ray.get(bound.remote(), timeout=SECONDS))
    except ray.exceptions.GetTimeoutError:
        raise SourceError(f"the {name} has not answered for {SECONDS:g} s") from None
    except ray.exceptions.RayActorError:
        raise SourceError(f"the {name} is gone") from None
    except ray.exceptions.RayError as error:
        raise SourceError(f"the {name} cannot be asked: {type(error).__name__}") from None


FIRST = 120.0
"""Seconds for Ray to start and connect."""
NEXT = 15.0
"""Seconds for each further line: the feed writes one every two, unless the tracker is busy."""


class ClusterRun:
    """A source of views: a process that asks the actors `Tracker` and `StepBuffer`.

    Args:
        address: of the cluster; `auto` is the one on this machine.
        namespace: of the actors.
    """

    def __init__(self, address: str = "auto", namespace: str = "unstable") -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._patience = FIRST
        self._ended = False
        self._last_error = "the process that asked the tracker has ended"
        module = "unstable.dashboard.live"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "--address", address, "--namespace", namespace],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, encoding="utf-8", start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, name="feed", daemon=True).start()

    def fetch(self) -> View:
        """The newest view; waits for the next one where there is no newer."""
        record = self._newest()
        if "error" in record:
            self._last_error = str(record["error"])
            raise SourceError(self._last_error)
        return make_view(record["info"], buffer=record["buffer"], gpus=local_gpus())

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def _newest(self) -> dict[str, Any]:
        """The last line that has come; older ones are of no interest."""
        line: str | None = None
        try:
            while not self._ended and (line is None or not self._lines.empty()):
                newer = self._lines.get(timeout=self._patience)
                line, self._ended = newer or line, newer is None
        except queue.Empty:
            raise SourceError(f"the cluster has not answered for {self._patience:g} s") from None
        self._patience = NEXT
        if line is None:
            raise SourceError(self._last_error)
        record: dict[str, Any] = json.loads(line)
        return record


EVERY = 2.0
"""Seconds between lines."""
KNOCK = 5.0
"""Seconds for a cluster's port to open."""


def main() -> None:
    """Write a JSON line every two seconds: `info` and `buffer`, or `error`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--namespace", required=True)
    options = parser.parse_args()
    lines = _own_stdout()
    try:
        parts = find_parts(options.address, options.namespace)
    except SourceError as error:
        _write(lines, {"error": str(error)})
        sys.exit(1)
    while True:
        try:
            info, buffer = parts.ask()
            info["match_counts"] = [[*pair, n] for pair, n in info["match_counts"].items()]
            _write(lines, {"info": info, "buffer": buffer})
        except SourceError as error:
            _write(lines, {"error": str(error)})
        except BrokenPipeError:  # nobody reads any more
            return
        time.sleep(EVERY)


def find_parts(address: str, namespace: str) -> LiveParts:
    """The tracker and the step buffer of the cluster.

    Raises:
        SourceError: there is no cluster, or no run in it.
    """
    import ray

    try:
        _knock(address)
        ray.init(
            address, namespace=namespace, log_to_driver=False, configure_logging=False,
            logging_level=logging.ERROR,
        )  # fmt: skip
    except (OSError, ValueError, RuntimeError) as error:
        where = "on this machine" if address == "auto" else f"at {address}"
        raise SourceError(
            f"no Ray cluster is running {where}: begin a run, give --address, or show a run that"
            " has ended with `unstable watch RUN`"
        ) from error
    try:
        tracker = ray.get_actor("Tracker")
    except ValueError:
        others = sorted(
            actor["namespace"]
            for actor in ray.util.list_named_actors(all_namespaces=True)
            if actor["name"] == "Tracker"
        )
        hint = f"; there is one in {', '.join(others)}: use --namespace" if others else ""
        raise SourceError(
            f"no actor named 'Tracker' in the namespace {namespace!r} of the cluster{hint}"
        ) from None
    try:
        step_buffer = ray.get_actor("StepBuffer")
    except ValueError:
        step_buffer = None
    return LiveParts(tracker, step_buffer)


def _knock(address: str) -> None:
    """Raise OSError where nobody listens: Ray itself would try again for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        with socket.create_connection((host, int(port)), timeout=KNOCK):
            pass


def _own_stdout() -> TextIO:
    """Standard output for our lines alone; what libraries print there goes to standard error."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return lines


def _write(lines: TextIO, record: dict[str, Any]) -> None:
    lines.write(to_json(record) + "\n")
    lines.flush()


if __name__ == "__main__":
    main()
