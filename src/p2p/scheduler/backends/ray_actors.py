"""The actors of a Ray cluster that stand for launches, and how to talk to them."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass
from typing import Any

from p2p.scheduler import node_bootstrap
from p2p.scheduler.backends import ray_actor
from p2p.scheduler.records import Launch

KNOCK_S = 5.0


class RayTrouble(Exception):
    """The cluster or an actor does not answer now; this says nothing about the launch."""


class ActorGone(Exception):
    """The actor has died, or its node has."""


@dataclass(frozen=True)
class Cluster:
    """Where it is, and what its actors are told."""

    address: str
    namespace: str
    notes: str
    """A folder here."""
    base_dir: str | None
    python: str | None
    silence_s: float


class RayActors:
    """Actors by the ids of their launches; raises RayTrouble if the cluster cannot be reached."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[str, Any] = {}
        self._ray = _connected(cluster)
        for module in (ray_actor, node_bootstrap):
            self._ray.cloudpickle.register_pickle_by_value(module)
        self._kind = self._ray.remote(ray_actor.LaunchActor)

    def make(self, launch: Launch) -> Any:
        """Put one into Ray's queue, or find the one that is there; it outlives this process."""
        cluster, spec = self._cluster, launch.spec
        actor = self._kind.options(
            name=launch.launch_id,
            namespace=cluster.namespace,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=spec.cores,
            num_gpus=spec.gpus,
        ).remote(
            launch.launch_id, spec.folder, cluster.namespace, cluster.base_dir, cluster.python,
            cluster.silence_s,
        )  # fmt: skip
        self._known[launch.launch_id] = actor
        return actor

    def find(self, launch_id: str) -> Any | None:
        """The actor; None if there is none, or none that lives."""
        if launch_id not in self._known:
            try:
                self._known[launch_id] = self._ray.get_actor(launch_id)
            except ValueError:
                return None
            except self._ray.exceptions.RayError as error:
                raise RayTrouble(_first_line(error)) from error
        return self._known[launch_id]

    def remove(self, launch_id: str, actor: Any) -> None:
        """End an actor; its room in the cluster is free then."""
        self._ray.kill(actor)
        self.forget(launch_id)

    def forget(self, launch_id: str) -> None:
        """Look it up anew when it is asked for."""
        self._known.pop(launch_id, None)

    def get(self, reference: Any, timeout: float | None) -> Any:
        """What a method of an actor returned; raises RayTrouble and ActorGone."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference, timeout=timeout)
        except errors.GetTimeoutError:
            raise RayTrouble(f"its actor did not answer for {timeout:g} s") from None
        except errors.ActorUnavailableError as error:
            raise RayTrouble(f"its actor is out of reach: {_first_line(error)}") from error
        except errors.RayActorError as error:
            raise ActorGone(_first_line(error)) from error
        except errors.RayTaskError as error:
            raise RayTrouble(f"on its node: {error.cause!r}") from error
        except errors.RayError as error:
            raise RayTrouble(_first_line(error)) from error

    def resources(self) -> dict[str, Any]:
        """What the cluster has."""
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        total = self._ray.cluster_resources()
        return {
            "version": self._ray.__version__,
            "nodes": len(nodes),
            "cores": int(total.get("CPU", 0)),
            "gpus": int(total.get("GPU", 0)),
        }


def ray_module() -> Any:
    """Ray itself; raises RayTrouble."""
    try:
        import ray
    except ImportError:
        raise RayTrouble("Ray is not installed: pip install 'prompt2policy[cluster]'") from None
    return ray


def _connected(cluster: Cluster) -> Any:
    address = cluster.address
    try:
        _knock(address)
    except OSError as error:
        raise RayTrouble(f"no Ray cluster answers at {address}: {error}") from error
    ray = ray_module()
    try:
        ray.init(
            address, namespace=cluster.namespace, log_to_driver=False, configure_logging=False,
            logging_level=logging.ERROR,
        )  # fmt: skip
    except ray.exceptions.AuthenticationError as error:
        raise RayTrouble(
            f"the cluster at {address} refuses our token (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or "
            f"~/.ray/auth_token must be the cluster's): {_first_line(error)}"
        ) from error
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise RayTrouble(f"no Ray cluster answers at {address}: {_first_line(error)}") from error
    return ray


def _knock(address: str) -> None:
    """Raise OSError where nobody listens: Ray itself would try again for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        with socket.create_connection((host, int(port)), timeout=KNOCK_S):
            pass


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
