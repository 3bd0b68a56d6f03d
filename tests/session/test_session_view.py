"""What agents see of a session's folder, also where much of it is missing or broken."""

from __future__ import annotations

import json

import pytest

from p2p.contracts import AuthoredCode, RunConfigEntry
from p2p.files import UnreadableError, save_model
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.records.loop_files import BestRun, SteeringTaken
from p2p.records.session_view import SessionView
from session_folder import INTENT, TRAIN, SessionFolder, judgment, reward


def test_an_empty_or_absent_folder_is_an_empty_session(tmp_path):
    view = SessionView(SessionRecord(tmp_path / "nowhere"))
    assert (view.prompt, view.env_id, view.intent, view.error) == ("", "", None, "")
    assert view.status == "unknown"
    assert view.iterations == {}
    assert view.lineage.best is None
    assert view.fixed == frozenset()


def test_it_reads_the_session_and_its_iterations(tmp_path):
    folder = SessionFolder.create(
        tmp_path,
        fixed=("gamma",),
        configs=(
            RunConfigEntry(config_id="base", params={"learning_rate": 1e-4}),
            RunConfigEntry(config_id="fast", params={"learning_rate": 1e-3, "ent_coef": 0.01}),
        ),
    )
    folder.iterate(1, 0.4, seeds=(1, 2))
    folder.remark(1, "slower, please")
    view = folder.view()
    assert (view.prompt, view.env_id, view.status) == (INTENT.prompt, "HalfCheetah-v5", "running")
    assert view.intent == INTENT
    assert view.fixed == {"gamma", "learning_rate"}
    assert view.remarks == ("slower, please",)
    iteration = view.iterations[1]
    assert iteration.reward_code == reward(1)
    assert iteration.config == TRAIN
    assert iteration.judgment == judgment(0.4)
    assert [run.run_id for run in iteration.runs] == ["base_seed_1", "base_seed_2"]
    assert iteration.error == ""
    run = iteration.best_run
    assert run is not None
    assert run.curve == ((50_000, 40.0), (100_000, 90.0))
    assert run.term_shares == pytest.approx({"speed": 0.75, "ctrl": 0.25})
    assert run.dynamics().returns.state == "rising"


def test_one_of_a_newer_version_says_what_cannot_be_read(tmp_path):
    folder = SessionFolder.create(tmp_path)
    path = folder.record.config.path
    config = json.loads(path.read_text())
    config["loop"]["train"]["unheard_of"] = 1
    path.write_text(json.dumps(config))
    view = folder.view()
    assert view.config is None
    assert view.error.startswith("session.json: ")
    assert "unheard_of" in view.error


def test_the_best_run_is_the_one_that_the_loop_chose(tmp_path):
    folder = SessionFolder.create(tmp_path)
    iteration = folder.iterate(1, 0.4, seeds=(1, 2))
    iteration.best_run.save(BestRun(run_id="base_seed_2", step=100_000, score=0.4))
    best = folder.view().iterations[1].best_run
    assert best is not None
    assert best.run_id == "base_seed_2"


def test_early_checkpoints_stand_beside_the_last_and_broken_ones_are_left_out(tmp_path):
    folder = SessionFolder.create(tmp_path)
    run = IterationRecord(folder.iterate(1, 0.4).path / "base_seed_1")
    streamed = run.path / "streaming_judgments"
    save_model(streamed / "50000.json", judgment(0.2, step=50_000))
    save_model(streamed / "100000.json", judgment(0.1))
    (streamed / "60000.json").write_text("{")
    (streamed / "notes.json").write_text("{}")
    best = folder.view().iterations[1].best_run
    assert best is not None
    scores = {step: found.intent_score for step, found in best.checkpoint_judgments.items()}
    assert scores == {50_000: 0.2, 100_000: 0.4}


def test_without_a_plan_the_configuration_is_the_best_runs_or_else_the_sessions(tmp_path):
    folder = SessionFolder.create(tmp_path)
    iteration = folder.iterate(1, 0.4, train=TRAIN.with_updates(gamma=0.9))
    assert folder.view().iterations[1].config.gamma == 0.9
    (iteration.path / "plan.json").unlink()
    assert folder.view().iterations[1].config.gamma == 0.9
    (iteration.path / "base_seed_1" / "config.json").write_text("torn")
    assert folder.view().iterations[1].config == TRAIN


def test_an_iteration_in_which_nothing_could_be_trained_says_why(tmp_path):
    folder = SessionFolder.create(tmp_path)
    iteration = folder.iterate(1, None)
    run = IterationRecord(iteration.path / "base_seed_1")
    run.set_status("failed", "the reward raised ZeroDivisionError")
    assert folder.view().iterations[1].error == "the reward raised ZeroDivisionError"
    iteration.set_status("error", "no core was free")
    assert folder.view().iterations[1].error == "no core was free"


def test_a_reward_that_could_not_be_made_to_run_is_shown_as_it_was_drafted(tmp_path):
    folder = SessionFolder.create(tmp_path)
    path = folder.record.path / "iter_1" / "reward.json"
    save_model(path, AuthoredCode(code="def f(:", author="test", valid=False))
    assert folder.view().iterations[1].reward_code == "def f(:"
    assert folder.view().iterations[1].runs == ()


def test_orders_fix_what_they_set_and_remarks_count_until_the_next_iteration(tmp_path):
    folder = SessionFolder.create(tmp_path)
    before = SteeringTaken(remarks=("before all",), hp_changes={"gamma": 0.9})
    folder.record.steering.save(before)
    folder.iterate(1, 0.4)
    folder.remark(1, "faster")
    assert folder.view().remarks == ("before all", "faster")
    folder.iterate(2, 0.4)
    assert folder.view().remarks == ()
    assert folder.view().fixed == {"gamma"}


def test_a_single_run_in_an_iteration_folder_is_its_own_run(tmp_path, trained_run):
    view = SessionView(SessionRecord(trained_run.path.parent))
    iteration = view.iterations[1]
    (run,) = iteration.runs
    assert run.status == "completed"
    assert len(run.curve) == 2
    assert sum(run.term_shares.values()) == pytest.approx(1)
    assert iteration.config == trained_run.config.read()
    assert iteration.judgment is None


def test_a_torn_lineage_is_not_an_empty_one(tmp_path):
    folder = SessionFolder.create(tmp_path)
    (folder.record.path / "lineage.json").write_text('{"nodes": [')
    with pytest.raises(UnreadableError, match=r"lineage\.json: not JSON"):
        _ = folder.view().lineage
