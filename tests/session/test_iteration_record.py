"""Iteration folders of both layouts: what is written reads back, what is broken never raises."""

from __future__ import annotations

import json
import shutil
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from p2p.config import TrainConfig
from p2p.contracts import (
    ConfigAggregation,
    EntityMetadata,
    IterationAggregation,
    JudgmentResult,
    RewardSpec,
    TrainSummary,
)
from p2p.records.iteration_record import IterationRecord, SessionRecord

if TYPE_CHECKING:
    from pathlib import Path

SUMMARY = TrainSummary(
    env_id="HalfCheetah-v5", seed=1, backend="fast", total_timesteps=1000, training_time_s=1.5,
    total_episodes=3, final_episodic_return=None, reward_calls="batch",
)  # fmt: skip


def _eval_line(step: int) -> dict[str, Any]:
    numbers = dict.fromkeys(
        ("mean_return", "std_return", "min_return", "max_return", "median_return", "p10_return",
         "p90_return", "episode_length", "total_reward"), 1.0)  # fmt: skip
    return {
        "type": "eval",
        "global_step": step,
        "all_returns": [1.0],
        "episode_lengths": [5],
        **numbers,
    }


def _write_lines(record: IterationRecord, *lines: object, tail: str = "") -> None:
    record.scalars_path.parent.mkdir(parents=True, exist_ok=True)
    record.scalars_path.write_text("".join(json.dumps(x) + "\n" for x in lines) + tail)


POLICY = "checkpoints/step_1000/policy.safetensors"


def _finished(path: Path, **changes: Any) -> IterationRecord:
    """A run with every file that a finished one has."""
    record = IterationRecord(path)
    record.save_config(TrainConfig(total_timesteps=1000, **changes))
    record.save_reward_source("def reward_fn(obs, action, next_obs, info): return 0.0, {}\n")
    record.save_reward_spec(RewardSpec(latex="r = 0"))
    record.save_summary(SUMMARY)
    _write_lines(record, {"type": "train", "global_step": 500}, _eval_line(1000))
    folder = record.checkpoints_dir / "step_1000"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "policy.safetensors").write_bytes(b"x")
    record.videos_dir.mkdir()
    (record.videos_dir / "eval_1000_median.mp4").write_bytes(b"x")
    np.savez(record.trajectory_file(1000, "median"), obs=np.zeros(3))
    record.set_status("completed")
    return record


def test_the_paths_that_the_interface_names_are_those_of_the_layout(tmp_path):
    record, session = IterationRecord(tmp_path / "iter_3"), SessionRecord(tmp_path)
    assert (record.iteration_id, record.number) == ("iter_3", 3)
    for path, name in (
        (record.config_path, "config.json"),
        (record.reward_fn_path, "reward_fn.py"),
        (record.reward_spec_path, "reward_spec.json"),
        (record.summary_path, "summary.json"),
        (record.scalars_path, "metrics/scalars.jsonl"),
        (record.trajectory_path, "trajectory.jsonl"),
        (record.prompt_path, "prompt.txt"),
        (record.videos_dir, "videos"),
        (record.status_path, "status.json"),
        (record.judgment_path, "judgment.json"),
        (record.revised_reward_path, "reward_fn_revised.py"),
    ):
        assert path == record.path / name
    for path, name in (
        (session.status_path, "status.json"),
        (session.history_path, "loop_history.json"),
        (session.metadata_path, "metadata.json"),
        (session.analysis_path, "analysis.json"),
    ):
        assert path == session.path / name


def test_what_is_saved_reads_back(tmp_path):
    record = IterationRecord(tmp_path)
    config = TrainConfig(net_arch=(32, 16), target_kl=0.02)
    record.save_config(config)
    assert record.config.read() == config
    assert record.read_config() == json.loads(config.to_json())
    record.save_summary(SUMMARY)
    assert record.read_summary() == SUMMARY
    judgment = JudgmentResult(intent_score=None, failure_tags=("a",))
    record.save_judgment(judgment)
    assert record.read_judgment() == judgment
    record.save_reward_spec(RewardSpec(terms={"a": "b"}))
    assert record.read_reward_spec().terms == {"a": "b"}
    record.save_reward_source("x = 'ä'")
    assert record.read_reward_source() == "x = 'ä'"
    record.save_revised_reward("y")
    assert record.revised_reward_path.read_text() == "y"
    aggregation = IterationAggregation(
        configs=(ConfigAggregation(config_id="a", per_seed=()),),
        best_config_id=None,
        best_run_id=None,
    )
    record.aggregation.save(aggregation)
    assert record.aggregation.read() == aggregation


BROKEN = [
    b"", b"{", b"[]", b"null", b"3", b"\xff\xfe", b'{"alien": 1}', b'{"status": "running"}',
    b'{"a": ' * 50_000, b'{"total_timesteps": "x"}', b'{"total_timesteps": NaN}',
]  # fmt: skip
FILES = (
    "config.json", "summary.json", "judgment.json", "reward_spec.json", "status.json",
    "aggregation.json", "metrics/scalars.jsonl", "reward_fn.py",
)  # fmt: skip


@pytest.mark.parametrize("content", [*BROKEN, None])
def test_readers_never_raise_and_validate_reports_each_broken_file(tmp_path, content):
    record = _finished(tmp_path / "iter_1")
    for name in FILES:
        file = record.path / name
        file.unlink(missing_ok=True)
        if content is None:
            file.mkdir()  # a folder in the way of each file
        else:
            file.write_bytes(content)
    assert record.read_summary() is None
    assert record.read_judgment() is None
    assert record.aggregation.read() is None
    assert record.read_status() is None
    assert record.config.read() is None
    assert isinstance(record.read_reward_source(), str)
    assert record.parse_scalars() == ([], [])
    assert record.compute_progress() is None
    assert record.derive_status() == "unknown"
    problems = record.validate()
    for name in FILES:
        is_source = name == "reward_fn.py" and content not in (None, b"", b"\xff\xfe")
        is_empty_log = name.endswith("jsonl") and content == b""
        assert is_source or is_empty_log or any(p.startswith(name) for p in problems), problems


def test_absent_files_give_the_empty_values(tmp_path):
    record = IterationRecord(tmp_path / "nothing")
    assert record.read_config() is None
    assert record.read_reward_source() == ""
    assert record.read_reward_spec() == RewardSpec()
    assert record.parse_scalars() == ([], [])
    assert record.video_filenames() == []
    assert record.runs() == []
    assert record.compute_progress() is None
    assert record.derive_status() == "unknown"
    assert record.validate() == ["nothing: no such folder"]
    record.touch_heartbeat()
    assert not record.path.exists()


def test_a_finished_run_is_valid_and_each_missing_piece_is_named(tmp_path):
    record = _finished(tmp_path / "iter_1")
    assert record.validate() == []
    for name, said in (
        ("config.json", "config.json: missing"),
        ("reward_fn.py", "reward_fn.py: missing"),
        ("summary.json", "summary.json: missing"),
        ("metrics/scalars.jsonl", "metrics/scalars.jsonl: missing"),
        (
            "checkpoints/step_1000/policy.safetensors",
            "checkpoints/step_1000/policy.safetensors: missing",
        ),
    ):
        copy = tmp_path / "copy"
        shutil.copytree(record.path, copy)
        (copy / name).unlink()
        assert IterationRecord(copy).validate() == [said]
        shutil.rmtree(copy)


def test_torn_and_foreign_lines_are_named(tmp_path):
    record = _finished(tmp_path / "iter_1")
    with record.scalars_path.open("a") as stream:
        stream.write('foreign\n{"global_step": true}\n{"global_st')
    assert record.validate() == [
        "metrics/scalars.jsonl: line 3 is not a record",
        "metrics/scalars.jsonl: line 4 is not a record",
        "metrics/scalars.jsonl: torn last line",
    ]
    assert len(record.parse_scalars()[0]) == 1


def test_scalars_are_split_by_kind_and_a_resumed_run_counts_once(tmp_path):
    record = IterationRecord(tmp_path)
    train = [{"type": "train", "global_step": s, "run": 1} for s in (100, 200, 300)]
    again = [{"type": "train", "global_step": s, "run": 2} for s in (200, 300, 400)]
    others = [{"type": "alien", "global_step": 9}, {"global_step": 500}]
    lines = [*train, _eval_line(300), *again, _eval_line(300), *others]
    _write_lines(record, *lines, tail='{"type": "train", "global_step": 60')
    training, evaluation = record.parse_scalars()
    assert [(t["global_step"], t.get("run")) for t in training] == [
        (100, 1), (200, 2), (300, 2), (400, 2), (500, None),
    ]  # fmt: skip
    assert [e["global_step"] for e in evaluation] == [300]


def test_progress_of_a_run_is_its_last_whole_line_and_no_more_is_read(tmp_path):
    record = IterationRecord(tmp_path / "iter_1")
    assert record.compute_progress() is None
    record.save_config(TrainConfig(total_timesteps=1000))
    assert record.compute_progress() == 0.0
    _write_lines(record, {"global_step": 250}, tail='{"global_step": 99')
    assert record.compute_progress() == 0.25
    _write_lines(record, {"global_step": 250}, "foreign", {"x": 1}, {"global_step": None})
    assert record.compute_progress() == 0.25
    _write_lines(record, {"global_step": 1024})  # the last rollout may pass the end
    assert record.compute_progress() == 1.0
    with record.scalars_path.open("wb") as stream:
        stream.seek(1 << 33)  # a hole of 8 GiB that no test could read
        stream.write(b'\n{"global_step": 500}\n')
    assert record.compute_progress() == 0.5


def test_progress_of_a_loop_iteration_is_the_mean_of_its_runs(tmp_path):
    iteration = IterationRecord(tmp_path / "iter_1")
    for seed, step in ((1, 500), (2, 0), (3, 250)):
        run = IterationRecord(iteration.path / f"base_seed_{seed}")
        run.save_config(TrainConfig(total_timesteps=1000, seed=seed))
        _write_lines(run, {"global_step": step})
    assert iteration.compute_progress() == 0.25
    iteration.runs()[1].set_status("error", "it failed, so nothing more will come")
    assert iteration.compute_progress() == pytest.approx((0.5 + 1 + 0.25) / 3)
    torn = iteration.path / "base_seed_4"
    torn.mkdir()
    (torn / "config.json").write_text("{")
    assert iteration.compute_progress() == pytest.approx((0.5 + 1 + 0.25) / 4)


def test_trajectories_videos_and_runs_come_in_their_order(tmp_path):
    record = IterationRecord(tmp_path)
    for step, label in ((900, "median"), (1000, "p90"), (1000, "median"), (1000, "p10")):
        record.trajectory_file(step, label).touch()
    assert record.trajectory_path.name == "trajectory_1000_median.npz"
    record.videos_dir.mkdir()
    for name in ("eval_1000_p10.mp4", "eval_200_p90.mp4", "eval_200_median.mp4", ".x.mp4", "x.tmp"):
        (record.videos_dir / name).touch()
    assert record.video_filenames() == [
        "eval_200_median.mp4", "eval_200_p90.mp4",  # drawn, as the first of the others
        "eval_900_median.mp4",
        "eval_1000_median.mp4", "eval_1000_p10.mp4", "eval_1000_p90.mp4",
    ]  # fmt: skip
    for name in ("b_seed_10", "b_seed_9", "a_seed_1", "work", "seed_1"):
        (tmp_path / name).mkdir()
    (tmp_path / "c_seed_1").touch()
    assert [run.iteration_id for run in record.runs()] == ["a_seed_1", "b_seed_9", "b_seed_10"]


def test_a_loop_iteration_is_validated_through_its_runs(tmp_path):
    iteration = IterationRecord(tmp_path / "iter_1")
    _finished(iteration.path / "base_seed_1")
    run = _finished(iteration.path / "base_seed_2")
    iteration.set_status("completed")
    assert iteration.validate() == []
    run.summary_path.write_text("{}")
    (problem, *_) = iteration.validate()
    assert problem.startswith("base_seed_2/summary.json: env_id")


@pytest.mark.parametrize("layout", ["single", "loop"])
def test_a_session_finds_iterations_of_both_layouts_in_order(tmp_path, layout):
    session = SessionRecord(tmp_path / "session_x")
    for n in (10, 2, 1):
        folder = session.path / f"iter_{n}"
        _finished(folder if layout == "single" else folder / "base_seed_1")
    (session.path / "iter_notes.txt").write_text("")
    (session.path / "iter_3").write_text("a file, not a folder")
    (session.path / "other").mkdir()
    _finished(session.path / "my_run")
    records = session.iteration_records()
    assert [r.iteration_id for r in records] == ["iter_1", "iter_2", "iter_10", "my_run"]
    assert session.get_iteration("iter_10") == records[2]
    assert session.get_iteration("my_run") == records[3]
    assert records[2].derive_status() == "completed"
    for bad in ("iter_4", "iter_3", "other", "..", "", "a/b", "../session_x/iter_1", "iter_1\0"):
        assert session.get_iteration(bad) is None


def test_new_iterations_are_numbered_on_and_names_are_not_taken_twice(tmp_path):
    session = SessionRecord(tmp_path / "s")
    assert session.create_iteration().iteration_id == "iter_1"
    (session.path / "iter_9").mkdir()
    assert session.create_iteration().iteration_id == "iter_10"
    with pytest.raises(FileExistsError):
        session.create_iteration("iter_10")
    with pytest.raises(ValueError, match="not a valid name"):
        session.create_iteration("../x")


# --- a session's own files ----------------------------------------------------------------------


def test_history_and_analysis_read_back_and_broken_ones_are_none(tmp_path):
    session = SessionRecord(tmp_path / "session_x")
    assert session.session_id == "session_x"
    assert session.read_history() is None
    session.save_history({"iterations": [1]})
    session.save_analysis({"text": "ä"})
    assert session.read_history() == {"iterations": [1]}
    assert session.read_analysis() == {"text": "ä"}
    session.history_path.write_text('{"iterations": [')
    session.analysis_path.write_text("[]")
    assert session.read_history() is None
    assert session.read_analysis() is None
    assert [p.split(":")[0] for p in session.validate()] == [
        "status.json", "loop_history.json", "analysis.json",
    ]  # fmt: skip


def test_metadata_is_changed_piece_by_piece(tmp_path):
    session = SessionRecord(tmp_path)
    assert session.read_metadata() == EntityMetadata()
    session.update_metadata(alias="a")
    assert session.update_metadata(tags=["x"]) == EntityMetadata(alias="a", tags=("x",))
    assert session.read_metadata() == EntityMetadata(alias="a", tags=("x",))
    with pytest.raises(ValueError, match="colour"):
        session.update_metadata(colour="red")
    assert session.read_metadata().alias == "a"


def test_unreadable_metadata_is_kept_when_it_is_replaced(tmp_path):
    session = SessionRecord(tmp_path)
    session.metadata_path.write_text("torn {")
    assert session.read_metadata() == EntityMetadata()
    session.update_metadata(starred=True)
    assert session.read_metadata().starred
    assert (tmp_path / "metadata.unreadable").read_text() == "torn {"


def test_changes_from_many_sides_are_all_kept(tmp_path):
    session = SessionRecord(tmp_path)
    changes = [{"alias": "a"}, {"starred": True}, {"tags": ["t"]}] * 3
    threads = [threading.Thread(target=session.update_metadata, kwargs=c) for c in changes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.read_metadata() == EntityMetadata(alias="a", starred=True, tags=("t",))
