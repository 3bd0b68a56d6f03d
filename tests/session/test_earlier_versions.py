"""Sessions that earlier versions began, killed in training: read, and resumed to their end.

Each archive is the folder that a commit's `p2p run` left at a kill -9, without logs and episodes.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from session_process import Sessions, run_here, status

from p2p import config, contracts
from p2p.agents.builtin import reward
from p2p.benchmark import measuring
from p2p.benchmark import records as benchmark_records
from p2p.event_log import read_events
from p2p.records import loop_files
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.scheduler import records as scheduler_records
from p2p.training.checkpoints import checkpoint_steps, load_checkpoint
from p2p.training.engines import table
from p2p.training.policies import policy
from p2p.training.runner import TrainingFailed, load_completed_run

ARCHIVES = Path(__file__).parent / "earlier_versions"
IN_TRAINING = {
    "59044ce": "iter_1/base_seed_1",  # before TrainConfig had `algorithm` and five other fields
    "438a8f9": "iter_2/base_seed_1",  # the same, with a judged iteration and its revision
    "aae2230": "iter_2/c1_seed_1",  # a search among candidates, by `builtin`
}
"""What was trained at the kill."""

RECORDS = (
    benchmark_records, config, contracts, loop_files, measuring, policy, reward,
    scheduler_records, table,
)  # fmt: skip
"""Modules with the records that are on disk."""


def unpack(version: str, runs: Path) -> SessionRecord:
    path = runs / "session_earlier"
    with tarfile.open(ARCHIVES / f"{version}.tar.xz") as archive:
        archive.extractall(path, filter="data")
    return SessionRecord(path)


def tree(folder: Path) -> dict[str, str]:
    """Every file, by the digest of what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Sessions]:
    started = Sessions(tmp_path)
    yield started
    started.clean_up()


@pytest.mark.parametrize("version", IN_TRAINING)
def test_every_record_of_an_earlier_version_is_read(version: str, tmp_path: Path) -> None:
    session = unpack(version, tmp_path)
    before = tree(session.path)
    assert session.find_unreadable() == []
    runs = [run for iteration in session.iteration_records() for run in iteration.runs()]
    for run in runs:
        config = run.config.read()
        assert config is not None
        load_completed_run(run, config, run.read_reward_source())  # it is the same run
        for step in checkpoint_steps(run):
            assert load_checkpoint(run, step).env_id == config.env_id
    events = read_events(session.events_path, limit=1000)
    assert events[0].event == "session.started"
    assert tree(session.path) == before


@pytest.mark.parametrize(
    "version",
    [
        pytest.param("59044ce", marks=pytest.mark.slow),
        "438a8f9",
        pytest.param("aae2230", marks=pytest.mark.slow),
    ],
)
def test_killed_under_an_earlier_version_it_resumes(version: str, sessions: Sessions) -> None:
    session = unpack(version, sessions.runs)
    run = IterationRecord(session.path / IN_TRAINING[version])
    before = run.scalars_path.read_text().splitlines()
    calls = len(list(session.llm_dir.glob("*.json")))
    _, err = sessions.resume("session_earlier").communicate(timeout=300)
    assert status(session) == "max_iterations", err
    after = run.scalars_path.read_text().splitlines()
    assert after[0] == before[0]  # with its time: it was not trained again
    assert len(after) > len(before)
    assert run.derive_status() in ("completed", "cancelled")
    [*_, last] = session.iteration_records()
    assert last.judgment.exists()
    started = [e.data for e in read_events(session.events_path) if e.event == "session.started"]
    assert started[-1] == {"resumed": True}
    result = session.result.read()
    assert result is not None
    assert (result.model_calls, result.unanswered) == (0, 0)  # the built-in author's are none
    assert len(list(session.llm_dir.glob("*.json"))) >= calls
    assert session.find_unreadable() == []


def test_no_record_of_earlier_fields_is_unreadable() -> None:
    """`fields.jsonl` has the fields of every record on disk, as those commits wrote them."""
    kinds = {kind.__name__: kind for module in RECORDS for kind in vars(module).values()
             if isinstance(kind, type) and issubclass(kind, BaseModel)}  # fmt: skip
    lines = (ARCHIVES / "fields.jsonl").read_text().splitlines()
    for record in map(json.loads, lines):
        with pytest.raises(ValidationError) as raised:
            kinds[record["record"]].model_validate(dict.fromkeys(record["fields"], object()))
        unknown = [
            error["loc"]
            for error in raised.value.errors()
            if error["type"] in ("extra_forbidden", "missing")
            and error["loc"] != ("unsafe_local",)  # dropped where a session is read
        ]
        assert not unknown, record["record"]


def set_field(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    "name",
    ["session.json", "intent.json", "iter_1/plan.json", "iter_2/base_seed_1/config.json"],
)
def test_a_failed_resume_changes_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = unpack("438a8f9", tmp_path)
    set_field(session.path / name, from_a_later_version=1)
    before = tree(session.path)
    flags = ["--session-id", "session_earlier", "--resume", "--runs-dir", str(tmp_path)]
    assert run_here(*flags, "--max-iterations", "5") == 2
    assert f"cannot be resumed: {name}: from_a_later_version: no such field" in (
        " ".join(capsys.readouterr().err.split())
    )
    assert tree(session.path) == before


def test_another_run_in_the_folder_is_named_by_what_differs(tmp_path: Path) -> None:
    session = unpack("438a8f9", tmp_path)
    run = IterationRecord(session.path / IN_TRAINING["438a8f9"])
    config = run.config.read()
    assert config is not None
    with pytest.raises(TrainingFailed, match="it differs in gamma, reward"):
        load_completed_run(run, config.with_updates(gamma=0.9), "another")
