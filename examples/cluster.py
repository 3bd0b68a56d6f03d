"""Many trainings over all nodes, from Python: `python examples/cluster.py`.

This machine is a node from the beginning; `p2p nodes add` makes others known. Nothing here changes
with them: a run goes where there is room, and its files come back.
"""

import time
from contextlib import closing
from pathlib import Path

import p2p
from p2p.config import TrainConfig
from p2p.scheduler.controllers import JobOptions, training_job
from p2p.scheduler.service import ensure_scheduler
from p2p.scheduler.store import Store
from p2p.settings import get_settings

RATES = (1e-4, 3e-4, 1e-3)
REWARD = (Path(__file__).parent / "rewards" / "walk.py").read_text()
BASE = TrainConfig(env_id="HalfCheetah-v5", total_timesteps=20_000, num_evals=1)


def main() -> None:
    runs_dir = get_settings().runs_dir.absolute()
    with closing(Store(runs_dir)) as store:
        jobs = {}
        for rate in RATES:
            options = JobOptions(cores=1, title=f"learning rate {rate:g}")
            config = BASE.with_updates(learning_rate=rate)
            job = training_job(config, REWARD, runs_dir, options, flags=["--no-videos"])
            store.submit(job)
            jobs[rate] = job
        ensure_scheduler(runs_dir)  # in the background; it ends when nothing is left to do

        waiting = dict(jobs)
        while waiting:
            time.sleep(1)
            for rate, job in tuple(waiting.items()):
                state = store.job(job.job_id)
                if state and state.state not in ("pending", "running"):
                    print(f"learning rate {rate:g}: {state.state}")
                    del waiting[rate]

    for rate, job in jobs.items():
        run = p2p.Run(runs_dir / job.runs[0].folder)
        if run.mean_return is not None:
            print(f"learning rate {rate:g}: return {run.mean_return:.1f}")


if __name__ == "__main__":
    main()
