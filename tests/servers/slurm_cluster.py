"""A real Slurm of one node, from Debian's packages, in a folder of its own: no root, no systemd."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")
SEARCHED = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

CONFIGURATION = """
ClusterName=p2p
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={controller_port}
SlurmdPort={daemon_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
TaskProlog={folder}/task_prolog
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
# More CPUs than there are, so that several jobs are there at once on any machine; no accounting,
# as on many small clusters.


def missing() -> str:
    """Why there can be no cluster here; empty if there can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=SEARCHED) is None]
    if absent:
        return f"{', '.join(absent)} not installed: scripts/slurm_packages.sh installs them"
    return ""


@dataclass(frozen=True)
class SlurmCluster:
    """A running cluster; its commands work wherever SLURM_CONF is set to `configuration`."""

    folder: Path
    host: str

    @property
    def configuration(self) -> Path:
        return self.folder / "slurm.conf"

    def call(self, *command: str) -> str:
        """Output of one of Slurm's commands."""
        done = subprocess.run(
            command, env={**os.environ, "SLURM_CONF": str(self.configuration)}, timeout=30,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def wait_until_idle(self) -> None:
        """Wait for the node to be there with nothing on it."""
        _until(lambda: _is_idle(self), self.folder)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@contextmanager
def running_cluster() -> Iterator[SlurmCluster]:
    """Start munged, slurmctld and slurmd; end them and all their jobs."""
    # Not pytest's folder: a socket's path has 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="p2p-slurm-"))
    cluster = SlurmCluster(folder, socket.gethostname().split(".")[0])
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(128))
    # Jobs have nothing of our environment: without locks of their own they would wait for whoever
    # holds the cores of this machine.
    prolog = folder / "task_prolog"
    prolog.write_text(f"#!/bin/sh\necho export P2P_CORE_LOCKS={folder}/cores\n")
    prolog.chmod(0o755)
    controller_port, daemon_port = _free_ports(2)
    cluster.configuration.write_text(
        CONFIGURATION.format(
            host=cluster.host, user=getpass.getuser(), folder=folder,
            controller_port=controller_port, daemon_port=daemon_port,
        )
    )  # fmt: skip
    commands = (
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket",
         f"--key-file={key}", f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/seed",
         f"--log-file={folder}/munged.log"],
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-c"],
    )  # fmt: skip
    daemons = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.out").open("wb") as output:
                daemons.append(
                    subprocess.Popen(
                        command, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                        env={"PATH": SEARCHED, "SLURM_CONF": str(cluster.configuration)},
                        start_new_session=True,
                    )
                )  # fmt: skip
            if command[0] == "munged":
                _until((folder / "munge.socket").exists, folder)
        cluster.wait_until_idle()
        yield cluster
        cluster.call("scancel", "--full", f"--user={getpass.getuser()}")
        _until(lambda: not cluster.call("squeue", "--noheader"), folder)
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(timeout=30)
        shutil.rmtree(folder, ignore_errors=True)


def _is_idle(cluster: SlurmCluster) -> bool:
    try:
        return "idle" in cluster.call("sinfo", "--noheader", "--format=%T")
    except AssertionError:  # the controller does not answer yet
        return False


def _until(condition: Callable[[], bool], folder: Path, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            words = "\n".join(path.read_text() for path in sorted(folder.glob("*.out")))
            raise TimeoutError(f"Slurm is not ready:\n{words}")
        time.sleep(0.05)
