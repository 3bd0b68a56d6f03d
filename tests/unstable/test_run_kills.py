"""Processes of a run on Ray that are killed: it goes on, or stops, says which, and can go on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import ray
from processes import kill_process, within
from small_run import learned_steps, new_run

from unstable.run.progress import Progress
from unstable.run.start import start

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.slow]

STOP = 30.0
"""Seconds from a kill to the end of the run, at most."""


class Killer:
    """Kills a process, once, when the run has come to a step."""

    def __init__(self, title: str, step: int) -> None:
        self.title, self.step = title, step
        self.time: float | None = None

    def __call__(self, progress: Progress) -> None:
        if self.time is None and progress.step >= self.step:
            kill_process(self.title)
            self.time = time.monotonic()

    def seconds_ago(self) -> float:
        assert self.time is not None, "nobody was killed"
        return time.monotonic() - self.time


def test_a_killed_engine_is_started_again_and_the_run_goes_on(model: str, tmp_path: Path) -> None:
    config, folder = new_run(tmp_path / "run", model, mode="ray", updates=12)
    killer = Killer("ray::VLLMActor", 2)
    with within(300):
        result = start(config, folder, model, killer)
    assert killer.time is not None
    assert (result.step, result.counts["actor_deaths"], result.counts["failed"]) == (12, 1, 0)
    assert learned_steps(folder.path) == [*range(1, 13)]


def test_dead_part_stops_run_which_can_be_resumed(model: str, tmp_path: Path) -> None:
    config, folder = new_run(tmp_path / "run", model, mode="ray", updates=1000)
    titles = {
        "learner": "ray::StandardLearner",
        "collector": "ray::Collector",
        "buffer": "ray::StepBuffer",
        "pool": "ray::ModelPool",
        "tracker": "ray::Tracker",
    }
    step = 1
    for name, title in titles.items():
        killer = Killer(title, step)
        with within(240), pytest.raises(RuntimeError) as failure:
            start(config, folder, model, killer)
        assert str(failure.value).startswith(f"the {name} has died: "), (name, failure.value)
        assert "\n" not in str(failure.value)
        assert killer.seconds_ago() < STOP, name
        assert f"the {name} has died" in (folder.path / "status.json").read_text()
        assert not ray.util.list_named_actors(all_namespaces=True)
        step = int(folder.states()[-1].name.removeprefix("step-")) + 1

    last = config.model_copy(update={"updates": step + 1})
    with within(240):
        assert start(last, folder, model, lambda _: None).step == step + 1
    assert learned_steps(folder.path) == [*range(1, step + 2)]
