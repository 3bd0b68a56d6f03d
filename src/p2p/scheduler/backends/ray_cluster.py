"""A Ray cluster and the actors on it that stand for launches: what happens in the Ray process."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2p.scheduler import package
from p2p.scheduler.backends import BackendError
from p2p.scheduler.package import unpack

if TYPE_CHECKING:
    from p2p.scheduler.launch import LaunchFolder

CONNECT_S = 5.0
ANSWER_S = 20.0
"""For an actor to answer; after that its node counts as out of reach for now."""
TIMEOUTS: Mapping[str, float] = {
    "ready": 2.0,  # one that waits for room is seen by its silence
    "install": 300.0, "pack": 300.0, "read": 300.0, "write": 300.0, "unpack": 300.0,
    "start": 120.0,
}  # fmt: skip
PROGRAM_LEASE_S = 15.0
"""The program ends so long after its actor died."""
RENEW_EVERY_S = 2.0


class ClusterError(BackendError):
    """The cluster or an actor does not answer now; this says nothing about the launch."""


class ActorGone(ClusterError):
    """The actor has died, its node has, or there was none."""


class ActorBusy(ClusterError):
    """The actor does not answer in time; it may wait for room."""


class LaunchActor:
    """A launch on its node: holds its resources, starts it, copies files.

    Ray is given this class as it is written here, with all it needs: nothing but the standard
    library may be imported until `install` has brought our package. The program runs beside the
    actor, under a supervisor with a short lease that the actor renews: if the actor dies, the
    program does not go on unseen.

    Args:
        launch_id: which.
        owner: a name for the scheduler it belongs to.
        base_dir: a folder for ours on the node; None: one in its folder for temporary files.
        silence_s: the launch is ended, and its place given up, when nobody has asked for so long.
    """

    def __init__(self, launch_id: str, owner: str, base_dir: str | None, silence_s: float) -> None:
        self.launch_id = launch_id
        ours = Path(base_dir or Path(tempfile.gettempdir()) / f"p2p-ray-{os.getuid()}")
        ours.mkdir(mode=0o700, parents=True, exist_ok=True)
        if ours.is_symlink() or ours.stat().st_uid != os.getuid():
            raise PermissionError(f"{ours} does not belong to this user")
        self.base = ours / owner
        self.silence_s = silence_s
        self.installed = False
        self.asked = time.monotonic()
        threading.Thread(target=self._renew, daemon=True).start()

    def ready(self) -> tuple[str, str]:
        """There is room for it: its base folder and the interpreter here."""
        self.asked = time.monotonic()
        return str(self.base), sys.executable

    def install(self, digest: str, data: bytes | None) -> bool:
        """Import the package from here on; False if it is not here and was not given."""
        self.asked = time.monotonic()
        folder = self.base / "packages" / digest
        if not folder.is_dir():
            if data is None:
                return False
            unpack(self.base, digest, data)
        os.environ["PYTHONPATH"] = str(folder)  # the program's
        sys.path.insert(0, str(folder))
        self.do("prepare")
        self.installed = True
        return True

    def status(self) -> dict[str, Any]:
        """The status of the launch."""
        self.asked = time.monotonic()
        return asdict(self._folder().status()) if self.installed else {"state": "absent"}

    def do(self, operation: str, **arguments: Any) -> Any:
        """Perform an operation of `p2p.scheduler.node` on the launch."""
        from p2p.scheduler.node import perform

        self.asked = time.monotonic()
        return perform(self.base, operation, self.launch_id, **arguments)

    def _folder(self) -> LaunchFolder:
        from p2p.scheduler.launch import LaunchFolder

        return LaunchFolder(self.base, self.launch_id)

    def _renew(self) -> None:
        """Renew the program's lease while it is polled; then release the place."""
        while True:
            time.sleep(RENEW_EVERY_S)
            is_silent = time.monotonic() - self.asked > self.silence_s
            if self.installed:
                folder = self._folder()
                if not is_silent:
                    folder.status()  # renews it
                    continue
                if folder.read_claim() is not None and folder.claim_is_held():
                    continue
            if is_silent:
                os._exit(0)


class RayCluster:
    """A cluster, and its actors by the ids of their launches. Connects when it is first asked."""

    def __init__(
        self, address: str, namespace: str, base_dir: str | None, silence_s: float
    ) -> None:
        self._address = address
        self._namespace = namespace
        self._actor_arguments = (namespace, base_dir, silence_s)
        self._connecting = threading.Lock()
        self._ray: Any = None

    def load(self) -> None:
        """Import Ray, which is slow and says nothing about the cluster."""
        try:
            import ray  # noqa: F401
        except ImportError:
            raise ClusterError(
                "Ray is not installed: pip install 'prompt2policy[cluster]'"
            ) from None

    def make(self, launch_id: str, cores: int, gpus: int) -> None:
        """Put an actor into Ray's queue, unless it is there; it outlives this process."""
        ray = self._get_ray()
        ray.remote(LaunchActor).options(
            name=launch_id,
            namespace=self._namespace,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=cores,
            num_gpus=gpus,
        ).remote(launch_id, *self._actor_arguments)

    def call(self, launch_id: str, method: str, arguments: Any, named: Mapping[str, Any]) -> Any:
        """Call a method of an actor, or one of its operations."""
        ray = self._get_ray()
        errors, timeout = ray.exceptions, TIMEOUTS.get(method, ANSWER_S)
        try:
            actor = ray.get_actor(launch_id, self._namespace)
            if not hasattr(LaunchActor, method):
                method, arguments = "do", (method, *arguments)
            return ray.get(getattr(actor, method).remote(*arguments, **named), timeout=timeout)
        except ValueError:
            raise ActorGone("its actor is gone") from None
        except errors.GetTimeoutError:
            raise ActorBusy(f"its actor did not answer for {timeout:g} s") from None
        except errors.ActorUnavailableError as error:
            raise ActorBusy(f"its actor is out of reach: {_first_line(error)}") from None
        except errors.RayActorError as error:
            raise ActorGone(_first_line(error)) from None
        except errors.RayTaskError as error:
            raise ClusterError(f"on its node: {error.cause!r}") from None
        except errors.RayError as error:
            raise ClusterError(_first_line(error)) from None

    def remove(self, launch_id: str) -> None:
        """End an actor; its room in the cluster is free then."""
        ray = self._get_ray()
        try:
            ray.kill(ray.get_actor(launch_id, self._namespace))
        except ValueError:
            return  # there is none
        except ray.exceptions.RayError as error:
            raise ClusterError(_first_line(error)) from None

    def resources(self) -> dict[str, Any]:
        """The version, nodes, cores and GPUs of the cluster."""
        ray = self._get_ray()
        total = ray.cluster_resources()
        return {
            "version": ray.__version__,
            "nodes": sum(node["Alive"] for node in ray.nodes()),
            "cores": int(total.get("CPU", 0)),
            "gpus": int(total.get("GPU", 0)),
        }

    def _get_ray(self) -> Any:
        with self._connecting:
            if self._ray is None:
                self._ray = _connect(self._address, self._namespace)
            return self._ray


def _connect(address: str, namespace: str) -> Any:
    import ray

    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host and port.isdigit():
            # Where nobody listens Ray itself would try again for minutes.
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        with contextlib.chdir("/"):  # workers import from the folder that Ray is started in
            ray.init(
                address, namespace=namespace, log_to_driver=False, configure_logging=False,
                logging_level=logging.ERROR,
            )  # fmt: skip
    except ray.exceptions.AuthenticationError as error:
        raise ClusterError(
            f"the cluster at {address} refuses our token (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or "
            f"~/.ray/auth_token must be the cluster's): {_first_line(error)}"
        ) from None
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise ClusterError(f"no Ray cluster answers at {address}: {_first_line(error)}") from None
    for module in (sys.modules[__name__], package):
        ray.cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return ray


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
