"""The dashboard of a run in a Ray cluster, looked at by another process."""

from __future__ import annotations

import json
import time
from contextlib import closing

import pytest
import ray

import unstable
import unstable.trackers
from unstable.dashboard import Source, SourceError
from unstable.dashboard.sources import ClusterRun, find_parts

pytestmark = pytest.mark.process


def trouble(source: Source) -> str:
    """Why there is no view, when there is none any more."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            source.fetch()
        except SourceError as error:
            return str(error)
    pytest.fail("there are still views")


def test_cluster_view_ends_with_its_tracker(cluster, tmp_path):
    tracker = unstable.Tracker.options(name="Tracker").remote(run_name="demo", run_dir=tmp_path)
    buffer = unstable.StepBuffer.options(name="StepBuffer").remote(max_buffer_size=8)
    pool = unstable.ModelPool.remote(sample_mode="mirror", max_active_lora=3, tracker=tracker)
    ray.get(pool.add_checkpoint.remote(path=None, iteration=0))
    ray.get(pool.push_game_outcome.remote("ckpt-0", "ckpt-0", 1.0, ["[4]"], "A"))
    ray.get(pool.snapshot.remote())
    ray.get(tracker.log_learner.remote({"step": 3, "loss": 0.5}))

    here = unstable.TerminalInterface(tracker, buffer)
    with closing(ClusterRun(cluster)) as source, closing(ClusterRun(cluster, "elsewhere")) as lost:
        view = source.fetch()
        assert view == here.view()
        assert (view.run_name, view.step, view.buffer_size) == ("demo", 3, 0)
        assert view.matches[0].games == 1
        with pytest.raises(SourceError, match="there is one in unstable: use --namespace"):
            lost.fetch()
        assert "elsewhere" in trouble(lost)  # also when its process has ended

        ray.kill(buffer)
        ray.get(tracker.log_learner.remote({"step": 4, "loss": 0.5}))
        while (view := source.fetch()).step < 4:
            pass
        assert view.buffer_size is None
        ray.kill(tracker)
        assert trouble(source) == "the tracker is gone"
        assert trouble(here.source) == "the tracker is gone"
        source._process.kill()
        source._process.wait()
        assert trouble(source) == "the tracker is gone"


def test_flush_every_is_carried_to_the_actor(cluster, tmp_path, monkeypatch):
    for number, kind in enumerate((unstable.trackers.Tracker, unstable.Tracker)):
        run = tmp_path / str(number)
        with monkeypatch.context() as patch:
            patch.setattr(kind, "FLUSH_EVERY", 0.0)
            tracker = unstable.Tracker.options(num_cpus=0).remote(run_name="demo", run_dir=run)
        ray.get(tracker.log_scalars.remote({"x/a": 1.0}), timeout=60)
        ray.get(tracker.log_scalars.remote({"x/a": 3.0}), timeout=60)
        written = [json.loads(line)["x/a"] for line in (run / "metrics.jsonl").open()]
        assert written == [1.0, 2.0]
        ray.kill(tracker)


def test_missing_cluster_is_an_error():
    with pytest.raises(SourceError, match="no Ray cluster is running at 127"):
        find_parts("127.0.0.1:1", "unstable")
