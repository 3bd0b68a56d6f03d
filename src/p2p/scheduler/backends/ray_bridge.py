"""`python -m p2p.scheduler.backends.ray_bridge CLUSTER`: a cluster's launches, asked in lines.

A process of its own: Ray ends a process whose cluster has gone, connects it to one cluster only,
and writes to its terminal. None of that must happen to a scheduler.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from p2p.scheduler.backends.line_process import answer_lines
from p2p.scheduler.backends.ray_actors import Cluster, RayTrouble, ray_module
from p2p.scheduler.backends.ray_launches import RayLaunches
from p2p.scheduler.package_wheel import build_wheel
from p2p.scheduler.records import Launch


class Bridge:
    """Connects when it is first asked, so that what is wrong is an answer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._connecting = threading.Lock()
        self._launches: RayLaunches | None = None

    def answer(self, method: Callable[..., Any], **arguments: Any) -> Any:
        """What one of the functions below says of the cluster's launches."""
        with self._connecting:
            if self._launches is None:
                self._launches = RayLaunches(self._cluster, build_wheel())
        return method(self._launches, **arguments)


def _ready() -> None:
    """Of the process, not of the cluster."""
    ray_module()


def _submit(launches: RayLaunches, launch: dict[str, Any], secrets: dict[str, str]) -> None:
    launches.submit(Launch.model_validate(launch), secrets)


def _status(launches: RayLaunches, launch_id: str) -> dict[str, Any]:
    return launches.status(launch_id).model_dump()


def _cancel(launches: RayLaunches, launch_id: str) -> None:
    launches.cancel(launch_id)


def _logs(launches: RayLaunches, launch_id: str, offset: int) -> str:
    return base64.b64encode(launches.logs(launch_id, offset)).decode()


def _collect(launches: RayLaunches, launch: dict[str, Any]) -> None:
    launches.collect(Launch.model_validate(launch))


def _check(launches: RayLaunches) -> dict[str, Any]:
    return launches.actors.resources()


METHODS: dict[str, Callable[..., Any]] = {
    "submit": _submit,
    "status": _status,
    "cancel": _cancel,
    "logs": _logs,
    "collect": _collect,
    "check": _check,
}


def main() -> None:
    """Answer until nobody asks any more."""
    bridge = Bridge(Cluster(**json.loads(sys.argv[1])))
    asked = {name: partial(bridge.answer, method) for name, method in METHODS.items()}
    answer_lines({"ready": _ready, **asked}, (RayTrouble, OSError))
    os._exit(0)  # threads that wait for room in the cluster do not hold up the end


if __name__ == "__main__":
    main()
