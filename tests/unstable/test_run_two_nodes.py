"""A run on two machines that see nothing of each other's run folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray
from processes import command_line, descendants, within
from ray.cluster_utils import Cluster
from small_run import learned_steps, new_run

from unstable.run.progress import Progress
from unstable.run.start import start

pytestmark = pytest.mark.slow

HIDDEN = 'mount -t tmpfs tmpfs "$1" && shift && exec "$@"'


@contextmanager
def two_nodes(hidden: Path, gpus_here: int, gpus_there: int) -> Iterator[subprocess.Popen[bytes]]:
    """A cluster of this node and another, whose processes see an empty folder `hidden`.

    That GPUs are there is a tale, for the scheduler: what asks for them runs on the CPU.
    """
    there = ["unshare", "-rm", "sh", "-c", HIDDEN, "sh", str(hidden)]
    if subprocess.run([*there, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no folder can be hidden here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("OMP_NUM_THREADS", "1")
        small = {"num_cpus": 4, "object_store_memory": 100 * 1024 * 1024}
        cluster = Cluster(True, head_node_args={**small, "num_gpus": gpus_here})
        join = [
            sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={cluster.address}",
            "--num-cpus=4", f"--num-gpus={gpus_there}", "--object-store-memory=100000000",
            "--block", "--disable-usage-stats",
        ]  # fmt: skip
        node = subprocess.Popen(
            [*there, *join], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": "/tmp"},
        )  # fmt: skip
    try:
        ray.init(cluster.address, namespace="unstable", log_to_driver=False)
        with within(120):
            while sum(one["Alive"] for one in ray.nodes()) < 2:
                time.sleep(0.2)
        yield node
    finally:
        ray.shutdown()
        node.terminate()
        node.wait(timeout=60)
        cluster.shutdown()


def processes_of(node: subprocess.Popen[bytes]) -> set[str]:
    """Classes: Ray names processes by class and method, with an actor's own name before or not."""
    lines = map(command_line, descendants(node.pid))
    names = (re.match(r"ray::(?:\w+:)?(\w+)", line) for line in lines)
    return {name[1] for name in names if name}


@pytest.mark.parametrize(
    ("gpus_here", "gpus_there", "parts_there"),
    [(1, 1, {"VLLMActor"}), (0, 2, {"VLLMActor", "StandardLearner"})],
)
def test_adapters_travel_and_the_run_folder_has_everything(
    tmp_path: Path, model: str, gpus_here: int, gpus_there: int, parts_there: set[str]
) -> None:
    config, folder = new_run(tmp_path / "run", model, mode="ray", updates=4)
    seen: set[str] = set()
    with two_nodes(folder.path, gpus_here, gpus_there) as node:

        def look(progress: Progress) -> None:
            seen.update(processes_of(node))

        for updates in (4, 6):
            longer = config.model_copy(update={"updates": updates})
            with within(600):
                result = start(longer, folder, model, look)
            assert result.counts["failed"] == 0
            assert result.counts["actor_deaths"] == 0
            checkpoint = folder.path / "checkpoints" / f"iteration-{updates}"
            assert result.checkpoint == str(checkpoint)
            assert (checkpoint / "adapter_model.safetensors").is_file()
    all_parts = {"Tracker", "StepBuffer", "ModelPool", "Collector", "StandardLearner", "VLLMActor"}
    assert seen & all_parts == parts_there
    assert learned_steps(folder.path) == [*range(1, 7)]
    # Answers that came from adapters: an engine alone there can have had them from Ray only.
    buffer = json.loads((folder.path / "states" / "step-6" / "buffer.json").read_text())
    assert {step["version"] for step in buffer["store"]["steps"]} & {1, 2, 3, 4, 5}
