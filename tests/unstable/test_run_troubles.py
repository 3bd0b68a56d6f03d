"""What may go wrong in a whole run: it goes on and counts it, or stops and says it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_run import learned_steps, new_run

from unstable.collector import CollectionError, Collector
from unstable.config import ConfigError
from unstable.run.parts import check
from unstable.run.progress import Progress
from unstable.run.start import start

NAME = "someone/strong"


def test_run_trains_on_games_lost_by_nonsense(model: str, tmp_path: Path) -> None:
    config, folder = new_run(tmp_path / "run", model)
    result = start(config, folder, model, lambda _: None)
    assert (result.step, result.counts["failed"]) == (3, 0)
    # Hardly warmed up, it writes bytes at random.
    assert result.counts["invalid"] > result.counts["games"] / 2
    assert all(evaluation["invalid_rate"] > 0.5 for evaluation in result.evaluations)
    assert learned_steps(folder.path) == [1, 2, 3]


def test_games_without_steps_are_played_again(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = Collector._learning_seats, 0

    def at_last(self: Collector, seats: Any) -> Any:
        nonlocal calls
        calls += 1
        return whole(self, seats) if calls > 8 else {}

    monkeypatch.setattr(Collector, "_learning_seats", at_last)
    config, folder = new_run(tmp_path / "run", model, eval_games=0, updates=1)
    result = start(config, folder, model, lambda _: None)
    assert (result.step, result.counts["games"], result.counts["filtered"]) == (1, 12, 8)


def test_run_without_steps_says_why(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Collector, "_learning_seats", lambda *_: {})
    config, folder = new_run(tmp_path / "run", model, eval_games=0, games_per_update=2)
    with pytest.raises(CollectionError, match=r"20 games gave no step to learn.* 20 were filt"):
        start(config, folder, model, lambda _: None)


def test_save_every_beyond_staleness_is_refused(model: str, tmp_path: Path) -> None:
    learner = {"save_every": 5, "options": {"max_staleness": 3}}
    config, _ = new_run(tmp_path / "run", model, learner=learner)
    with pytest.raises(ConfigError, match=r"learner\.save_every: 5 .* after 3"):
        check(config)


def test_metrics_that_cannot_be_written_are_counted(model: str, tmp_path: Path) -> None:
    config, folder = new_run(tmp_path / "run", model, updates=1)
    games = folder.path / "eval_data" / "games.jsonl"

    def fill(progress: Progress) -> None:
        if not games.is_symlink():
            games.symlink_to("/dev/full")

    result = start(config, folder, model, fill)
    assert result.step == 1
    assert result.counts["write_failures"] == result.counts["eval_games"] == 8
    assert result.evaluations[0]["games"] == 4  # what the run knows does not depend on it


FULL = """
mount -t tmpfs -o size=8m tmpfs "$1" || exit 99
run="$1"/run; cp -r "$2" "$run"; shift 2
"$@" resume "$run" & pid=$!
until [ -e "$run"/states/step-2 ]; do kill -0 $pid || exit 98; sleep 0.05; done
dd if=/dev/zero of="$run"/filler bs=64k 2>/dev/null
wait $pid; echo "first $?" >&2
rm "$run"/filler
"$@" resume "$run" --updates 8 --json > "$run"/result; echo "second $?" >&2
cat "$run"/result "$run"/metrics.jsonl
"""


@pytest.mark.slow
def test_full_disk_stops_run_which_can_be_resumed(model: str, tmp_path: Path) -> None:
    _, folder = new_run(tmp_path / "made", model, updates=1000, eval_games=0)
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["unshare", "-rm", "sh", "-c", FULL, "sh", disk, folder.path]
    done = subprocess.run(
        [*command, sys.executable, "-m", "unstable.cli"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    if done.returncode == 99:
        pytest.skip("no disk can be mounted here")
    assert "first 1" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    (told,) = [line for line in done.stderr.splitlines() if "resume with: unstable resume" in line]
    assert "No space left" in told
    assert "second 0" in done.stderr, done.stderr
    *_, metrics = done.stdout.partition("\n}\n")
    steps = [json.loads(line).get("learner/step") for line in metrics.splitlines()]
    assert [step for step in steps if step] == [1, 2, 3, 4, 5, 6, 7, 8]
