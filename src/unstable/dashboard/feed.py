"""`python -m unstable.dashboard.feed`: asks a cluster's tracker, and writes what it says.

A process of its own: Ray ends a process whose cluster has gone, and writes to its terminal. Neither
must happen to a dashboard.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
import time
from typing import Any, TextIO

from unstable.dashboard.live import LiveParts
from unstable.dashboard.source import SourceError
from unstable.utils.files import to_json

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
