"""Places besides this machine's own cores where a benchmark can run: real ones, started here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import slurm_cluster
import ssh_server

from p2p.scheduler.records import NodeConfig


class Place(NamedTuple):
    """A node, and what a command needs in its environment to use it."""

    node: NodeConfig
    variables: Mapping[str, str]


@contextmanager
def ssh_place(folder: Path) -> Iterator[Place]:
    """A server on loopback."""
    if ssh_server.WHY_NOT:
        pytest.skip(ssh_server.WHY_NOT)
    server = ssh_server.SSHServer(folder / "ssh")
    server.start()
    try:
        node = NodeConfig(
            node_id="other",
            backend="ssh",
            cores=1,
            host=server.address,
            port=server.port,
            base_dir=str(server.base_dir),
            python=sys.executable,
            key_file=str(server.user_key),
            known_hosts=str(server.known_hosts),
        )
        yield Place(node, {})
    finally:
        server.stop()


@contextmanager
def ray_place(folder: Path) -> Iterator[Place]:
    """A cluster whose head has no cores, so that runs go to its other node."""
    utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # else any load at all keeps workers waiting
        patch.setenv("P2P_CORE_LOCKS", str(folder / "ray_cores"))
        memory = {"object_store_memory": 80 * 1024 * 1024}
        head = {"num_cpus": 0, "include_dashboard": False, **memory}
        cluster = utils.Cluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(num_cpus=1, **memory)
            base = str(folder / "ray_node")
            address = cluster.address
            node = NodeConfig(
                node_id="other", backend="ray", cores=1, address=address, base_dir=base
            )
            yield Place(node, {})
        finally:
            cluster.shutdown()


@contextmanager
def slurm_place(folder: Path) -> Iterator[Place]:
    """A cluster of one node."""
    if why := slurm_cluster.missing():
        pytest.skip(why)
    with slurm_cluster.running_cluster() as cluster:
        base = str(folder / "slurm_base")
        node = NodeConfig(node_id="other", backend="slurm", cores=1, base_dir=base)
        yield Place(node, {"SLURM_CONF": str(cluster.configuration)})


PLACES: Mapping[str, Callable[[Path], AbstractContextManager[Place]]] = {
    "ssh": ssh_place,
    "ray": ray_place,
    "slurm": slurm_place,
}
