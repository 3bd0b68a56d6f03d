"""`python -m p2p.scheduler.backends.slurm_submit`: hands launches to Slurm, through submitit.

A process of its own, as sbatch sends its caller's environment along: this one has nothing in it
that must not travel, and can be ended when the controller does not answer. Reads an Order as JSON
from standard input, writes the ids of the jobs as a JSON list.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Order:
    """Launches that ask for the same; several become one array."""

    base: str
    launch_ids: tuple[str, ...]
    folder: str
    """For submitit's files; seen by all nodes."""
    name: str
    python: str
    python_path: str
    cores: int
    gpus: int
    minutes: int | None
    partition: str | None
    variables: tuple[str, ...]
    """Those of this process that the jobs have, too."""

    def to_json(self) -> str:
        """As it travels."""
        return json.dumps(asdict(self))

    def parameters(self) -> dict[str, Any]:
        """As submitit names them; None is left to the cluster."""
        return {
            "job_name": self.name,
            "partition": self.partition,
            "time": self.minutes,
            "cpus_per_task": self.cores,
            "gpus_per_node": self.gpus or None,
            "ntasks_per_node": 1,
            "array_parallelism": len(self.launch_ids),
            "stderr_to_stdout": True,
            "wckey": None,
            # One process, which hears Slurm's signals itself.
            "use_srun": False,
            # The shell around it must not die of a signal that is meant for it: Slurm would kill
            # what the shell leaves behind.
            "setup": ["trap : TERM", f"export PYTHONPATH={shlex.quote(self.python_path)}"],
            "additional_parameters": {
                "export": ",".join(self.variables) or "NONE",
                # A launch runs once: who wants it again makes it a new attempt.
                "no-requeue": True,
            },
        }


def hand_in(order: Order) -> list[str]:
    """Queue them; the ids of the jobs, in the same order."""
    import submitit

    from p2p.scheduler.backends.slurm_task import attend_in_job

    executor = submitit.SlurmExecutor(folder=order.folder, python=shlex.quote(order.python))
    executor.update_parameters(**order.parameters())
    jobs = executor.map_array(attend_in_job, [order.base] * len(order.launch_ids), order.launch_ids)
    return [str(job.job_id) for job in jobs]


def main() -> None:
    """Take one order."""
    fields = json.load(sys.stdin)
    for name in ("launch_ids", "variables"):
        fields[name] = tuple(fields[name])
    try:
        ids = hand_in(Order(**fields))
    except (ImportError, RuntimeError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    sys.stdout.write(json.dumps(ids))


if __name__ == "__main__":
    main()
