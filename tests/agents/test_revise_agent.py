"""A revision: what goes into the question, what is refused, and what becomes of the rest."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from p2p.agents.requests import LessonUpdate, ReviseRequest, RevisionProposal, TermStatistics
from p2p.agents.revise_agent import (
    MAX_TOOL_CALLS,
    pictures_of,
    revise,
    revise_request,
    term_statistics,
)
from p2p.config import TrainConfig
from p2p.contracts import (
    AuthoredCode,
    CriterionGradient,
    CriterionScore,
    JudgmentResult,
    Lesson,
    LessonCheck,
    LineageNode,
    Revision,
    RolloutJudgment,
    RunConfigEntry,
)
from p2p.files import save_model
from p2p.inference.question import BadReply, Media
from p2p.records.iteration_record import IterationRecord
from p2p.training.evaluation import record_episodes
from session_folder import INTENT, TRAIN, Scripted, SessionFolder, reward, tool


def proposal(**changes):
    """A sensible answer after the first iteration."""
    told = {
        "diagnosis": "too slow",
        "lesson": "a weight of 1 is too little",
        "based_on": 1,
        "changes": "more weight on speed",
        "reward_code": reward(7),
    }
    return RevisionProposal(**{**told, **changes})


@pytest.fixture
def folder(tmp_path):
    folder = SessionFolder.create(tmp_path)
    folder.iterate(1, 0.4)
    return folder


def asked(client) -> ReviseRequest:
    """The request as it stands in the prompt."""
    (block,) = re.findall(
        r'<request role="revise_agent">\n(.*?)\n</request>', client.questions[0].prompt, re.DOTALL
    )
    return ReviseRequest.model_validate_json(block)


def test_the_reviser_is_told_where_the_reward_fell_while_a_criterion_rose(folder):
    record = folder.record.iteration(1)
    gradient = CriterionGradient(motion="hopping higher", criterion="speed", correlation=-1.0)
    written = AuthoredCode(code=reward(1), author="test", valid=True, gradients=(gradient,))
    record.reward.save(written)
    client = Scripted([proposal()])
    revise(client, folder.view(), 1)
    assert "the reward falls while 'speed' rises: hopping higher" in asked(client).screening


def test_a_good_proposal_becomes_a_revision(folder):
    client = Scripted([proposal(hp_changes={"gamma": 0.98})])
    revision = revise(client, folder.view(), 1)
    assert revision == Revision(
        based_on=1,
        diagnosis="too slow",
        lesson="a weight of 1 is too little",
        changes="more weight on speed",
        reward_code=reward(7),
        hp_changes={"gamma": 0.98},
        lessons=(Lesson(text="a weight of 1 is too little", tier="STRONG", learned_at=1),),
        author="test:script",
    )
    assert Revision.model_validate_json(revision.model_dump_json()) == revision
    assert client.questions[0].max_tool_calls == MAX_TOOL_CALLS


def test_the_request_has_what_the_iteration_came_to(folder):
    folder.iterate(2, 0.3, parent=1, changes="less weight")
    client = Scripted([proposal()])
    revise(client, folder.view(), 2)
    request = asked(client)
    assert request.criteria == INTENT.criteria
    assert (request.iteration, request.best_iteration) == (2, 1)
    assert (request.reward_code, request.best_reward_code) == (reward(2), reward(1))
    assert (request.score, request.pass_threshold) == (0.3, 0.8)
    assert [found.id for found in request.criterion_scores] == ["speed", "upright"]
    assert request.unmet == ("speed",)
    # No episode was recorded: what is left are the sums of the last evaluation.
    assert request.terms == (
        TermStatistics(name="speed", mean=0.27, share=0.75),
        TermStatistics(name="ctrl", mean=-0.09, share=0.25),
    )
    assert request.judged == "base_seed_1, checkpoint at step 100000, deterministic actions"
    assert request.learning_curve == ((50_000, 40.0), (100_000, 90.0))
    assert (request.training_curve[0], request.training_curve[-1]) == ((5000, 5.0), (100_000, 100))
    assert len(request.training_curve) <= 16
    assert request.bounds["gamma"] == (0.8, 0.9999)
    assert request.still_improving is True
    assert "return: rising" in request.dynamics
    assert set(request.hyperparameters) == set(TRAIN.tunable)
    assert request.history[1].changes == "less weight"
    assert (request.training_error, request.stagnation) == ("", "")
    assert "x_velocity" in client.questions[0].prompt


def test_the_same_again_is_refused_however_it_is_written(folder):
    rewritten = reward(1).replace("Run.", "Run faster!") + "\n\n# not the same text\n"
    client = Scripted([proposal(reward_code=rewritten), proposal()])
    assert revise(client, folder.view(), 1).reward_code == reward(7)
    assert client.complaints == ["iteration 1 had the same reward and hyperparameters"]


def test_the_same_again_may_be_trained_on(folder):
    client = Scripted([proposal(reward_code=reward(1), warm_start=True)])
    revision = revise(client, folder.view(), 1)
    assert (revision.reward_code, revision.warm_start) == (reward(1), True)
    assert client.complaints == []


def test_the_same_reward_with_another_hyperparameter_is_new(folder):
    client = Scripted([proposal(reward_code=reward(1), hp_changes={"gamma": 0.9})])
    revision = revise(client, folder.view(), 1)
    assert (revision.reward_code, revision.hp_changes) == (reward(1), {"gamma": 0.9})


def test_going_back_to_what_an_older_iteration_did_is_refused(folder):
    folder.iterate(2, 0.3, weight=1, train=TRAIN.with_updates(gamma=0.9), parent=1)
    back = proposal(based_on=2, reward_code=reward(1), hp_changes={"gamma": 0.99})
    client = Scripted([back])
    with pytest.raises(BadReply):
        revise(client, folder.view(), 2)
    assert client.complaints == ["iteration 1 had the same reward and hyperparameters"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"based_on": 5}, "based_on=5: there is no such iteration with reward code; there are 1"),
        ({"reward_code": " \n"}, "reward_code is empty"),
        ({"reward_code": "def reward_fn(:"}, "reward_code, line 1: "),
        ({"reward_code": "x = '\0'"}, "reward_code"),
    ],
)
def test_a_proposal_that_nothing_can_be_trained_with_is_refused(folder, changes, complaint):
    client = Scripted([proposal(**changes), proposal()])
    revise(client, folder.view(), 1)
    assert complaint in client.complaints[0]


def test_what_the_person_fixed_stays_with_a_note(tmp_path):
    everywhere = RunConfigEntry(config_id="a", params={"learning_rate": 1e-4})
    folder = SessionFolder.create(tmp_path, fixed=("gamma",), configs=(everywhere,))
    folder.iterate(1, 0.4)
    client = Scripted([proposal(hp_changes={"gamma": 0.9, "learning_rate": 1e-3, "ent_coef": 0.1})])
    revision = revise(client, folder.view(), 1)
    assert revision.hp_changes == {"ent_coef": 0.1}
    notes = " | ".join(revision.notes)
    assert "gamma stays at 0.99: the user has set it" in notes
    assert "learning_rate stays at 0.0003" in notes
    request = asked(client)
    assert set(request.fixed) == {"gamma", "learning_rate"}
    assert not set(request.fixed) & set(request.bounds)


def test_a_hyperparameter_out_of_range_is_sent_back_with_the_range(folder):
    wanted = {"ent_coef": 7.0, "vf_coef": "much", "seed": 5}
    client = Scripted([proposal(hp_changes=wanted), proposal(hp_changes={"ent_coef": 0.05})])
    revision = revise(client, folder.view(), 1)
    assert (revision.hp_changes, revision.notes) == ({"ent_coef": 0.05}, ())
    [complaint] = client.complaints
    assert "ent_coef=7.0 is out of range: choose from 0 to 0.1" in complaint
    assert "vf_coef='much' is not valid" in complaint
    assert "seed cannot be tuned; there are learning_rate" in complaint


def recorded(folder, step, speed, ctrl, label="median"):
    """An evaluation episode of a run, with these terms in each step."""
    [episode] = record_episodes(TRAIN.with_updates(max_episode_steps=3), "zero", episodes=1, seed=1)
    terms = {"speed": np.full(3, speed), "ctrl": np.array([ctrl, ctrl, 0.0])}
    run = IterationRecord(folder.record.path / "iter_1" / "base_seed_1")
    replace(episode, reward_terms=terms).save(run.trajectory_file(step, label))
    score = CriterionScore(id="speed", score=0.5, value=2 * speed)
    rollout = RolloutJudgment(label=label, score=0.5, criteria=(score,))
    return run, rollout


def test_terms_are_those_of_the_judged_checkpoint_with_sign_range_and_correlation(folder):
    for step in range(10_000, 70_000, 10_000):
        run, rollout = recorded(folder, step, step / 1e4, -1.0)
        judged = JudgmentResult(intent_score=0.5, step=step, rollouts=(rollout,))
        save_model(run.streaming_dir / f"{step}.json", judged)
    recorded(folder, 100_000, -3.0, -1.5)
    recorded(folder, 100_000, -5.0, -1.5, "p90")
    speed, ctrl = term_statistics(folder.view().iterations[1].best_run, 100_000)
    assert speed == TermStatistics(
        name="speed", mean=-4.0, share=0.8, low=-5.0, high=-3.0, correlations={"speed": 1.0}
    )
    assert ctrl == TermStatistics(name="ctrl", mean=-1.0, share=0.2, low=-1.5, high=0.0)


def test_a_model_that_sees_is_shown_the_judged_episode(folder):
    [episode] = record_episodes(
        TRAIN.with_updates(max_episode_steps=60), "random", episodes=1, seed=1
    )
    run = IterationRecord(folder.record.path / "iter_1" / "base_seed_1")
    (run.path / "judged").mkdir()
    label = folder.view().iterations[1].judgment.rollouts[0].label
    for rollout in folder.view().iterations[1].judgment.rollouts:
        episode.save(run.path / "judged" / f"trajectory_{rollout.label}.npz")
    view = folder.view()
    lengths = f"of {episode.length} to {episode.length} steps"
    assert lengths in revise_request(view, 1).judged
    assert view.loop.videos
    assert pictures_of(view, 1, "builtin") == ()
    assert pictures_of(view, 1, "vllm:Qwen/Qwen3") == ()
    shown = pictures_of(view, 1, "anthropic:claude-sonnet-5-5")
    pictures = [part for part in shown if isinstance(part, Media)]
    assert len(pictures) == 1 + 6
    times = [float(part.split()[1]) for part in shown if str(part).startswith("At ")]
    assert times == sorted(times)
    assert "of the judged checkpoint" in shown[0]
    assert label.partition("_")[0] in shown[0]
    client = Scripted([proposal()])
    client.model = "openai:gpt-6.1-sol"
    revise(client, view, 1)
    assert len([p for p in client.questions[0].prompt if isinstance(p, Media)]) == 7


def test_without_tuning_no_hyperparameter_moves(tmp_path):
    folder = SessionFolder.create(tmp_path, hp_tuning=False)
    folder.iterate(1, 0.4)
    only_tuned = proposal(reward_code=reward(1), hp_changes={"gamma": 0.9})
    client = Scripted([only_tuned, proposal(hp_changes={"gamma": 0.9})])
    revision = revise(client, folder.view(), 1)
    assert revision.hp_changes == {}
    assert revision.notes == ("gamma stays at 0.99: hyperparameters are not to be tuned",)
    assert "the same reward" in client.complaints[0]
    assert "not to be tuned" in client.complaints[0]
    assert set(asked(client).fixed) == set(TRAIN.tunable)


def test_hyperparameters_change_against_the_iteration_that_is_built_on(folder):
    wide = TRAIN.with_updates(net_arch=(128, 128), gamma=0.9)
    folder.iterate(2, 0.3, train=wide, parent=1)
    client = Scripted([proposal(based_on=2, hp_changes={"net_arch": [128, 128], "gamma": 0.95})])
    assert revise(client, folder.view(), 2).hp_changes == {"gamma": 0.95}
    client = Scripted([proposal(based_on=1, hp_changes={"net_arch": [128, 128]})])
    assert revise(client, folder.view(), 2).hp_changes == {"net_arch": [128, 128]}


def test_the_changes_give_the_configuration_that_was_weighed(folder):
    wanted = {"num_steps": 100, "num_minibatches": 64}
    revision = revise(Scripted([proposal(hp_changes=wanted)]), folder.view(), 1)
    config, notes = TRAIN.apply_updates(revision.hp_changes)
    assert notes == []
    assert TrainConfig.model_validate(config.model_dump()).batch_size % config.num_minibatches == 0


def test_a_change_does_not_move_a_fixed_value_by_a_detour(tmp_path):
    folder = SessionFolder.create(tmp_path, fixed=("num_minibatches",))
    folder.iterate(1, 0.4)
    wanted = proposal(hp_changes={"num_steps": 101, "gamma": 0.9})
    revision = revise(Scripted([wanted]), folder.view(), 1)
    assert revision.hp_changes == {"gamma": 0.9}
    assert revision.notes == ("num_steps stays at 256: it would move num_minibatches",)


def hard(text: str, kind: str, name: str, value: float | None = None) -> Lesson:
    check = LessonCheck(kind=kind, name=name, value=value)  # type: ignore[arg-type]
    return Lesson(text=text, tier="HARD", learned_at=1, check=check)


def test_a_hard_lesson_is_enforced(folder):
    lineage = folder.view().lineage
    lineage = lineage.learn(hard("keep the speed", "term_required", "speed"))
    lineage = lineage.learn(hard("no high gamma", "hyperparameter_at_most", "gamma", 0.95))
    folder.save_lineage(lineage)
    without = proposal(reward_code=reward(7).replace('"speed"', '"run"'))
    good = proposal(hp_changes={"gamma": 0.9})
    client = Scripted([without, good])
    revision = revise(client, folder.view(), 1)
    assert revision.hp_changes == {"gamma": 0.9}
    complaint = client.complaints[0]
    assert "it has no reward term `speed`, against the HARD lesson: keep the speed" in complaint
    assert "it sets gamma=0.99, over 0.95, against the HARD lesson: no high gamma" in complaint


def test_a_hard_lesson_does_not_count_against_what_the_person_fixed(tmp_path):
    folder = SessionFolder.create(tmp_path, fixed=("gamma",))
    folder.iterate(1, 0.4)
    lesson = hard("no high gamma", "hyperparameter_at_most", "gamma", 0.95)
    folder.save_lineage(folder.view().lineage.learn(lesson))
    assert revise(Scripted([proposal()]), folder.view(), 1).hp_changes == {}


def test_a_hard_lesson_that_is_retired_in_the_same_breath_does_not_bind(folder):
    folder.save_lineage(folder.view().lineage.learn(hard("no speed", "term_forbidden", "speed")))
    retired = LessonUpdate(index=0, tier="RETIRED", reason="it was another term")
    client = Scripted([proposal(), proposal(lesson_updates=(retired,))])
    revision = revise(client, folder.view(), 1)
    assert len(client.complaints) == 1
    assert [lesson.tier for lesson in revision.lessons] == ["RETIRED", "STRONG"]


def test_lessons_are_called_by_the_numbers_that_were_shown(folder):
    lineage = folder.view().lineage
    for text in "abc":
        lineage = lineage.learn(Lesson(text=text, learned_at=1))
    folder.save_lineage(lineage)

    def reply(question):
        note = tool(question, "update_lesson")
        note(0, "RETIRED", "wrong")
        note(2, "SOFT", "doubtful")
        updates = (
            LessonUpdate(index=1, tier="HARD", reason="always"),
            LessonUpdate(index=2, tier="HARD", reason="on second thoughts"),
            LessonUpdate(index=3, tier="HARD", reason="none"),
            LessonUpdate(index=-1, tier="HARD", reason="none"),
        )
        return proposal(lesson="", lesson_updates=updates)

    revision = revise(Scripted([reply]), folder.view(), 1)
    tiers = {lesson.text: lesson.tier for lesson in revision.lessons}
    assert tiers == {"a": "RETIRED", "b": "HARD", "c": "HARD"}
    assert revision.lessons[2].reason == "on second thoughts"
    assert sorted(revision.notes) == [
        "there is no lesson -1; there are 3, from 0",
        "there is no lesson 3; there are 3, from 0",
    ]


def test_retired_lessons_are_kept_and_not_shown(folder):
    lineage = folder.view().lineage.learn(Lesson(text="old", tier="RETIRED", learned_at=1))
    folder.save_lineage(lineage)
    client = Scripted([proposal(lesson="")])
    revision = revise(client, folder.view(), 1)
    assert asked(client).lessons == ()
    assert [lesson.text for lesson in revision.lessons] == ["old"]


def test_an_iteration_that_nobody_judged_teaches_nothing_and_is_not_the_best(folder):
    folder.iterate(2, None, parent=1)
    client = Scripted([proposal()])
    revision = revise(client, folder.view(), 2)
    request = asked(client)
    assert (request.best_iteration, request.score) == (1, None)
    assert request.training_error == "the code judge: it timed out"
    assert (revision.lesson, revision.lessons) == ("", ())
    assert revision.notes == ("no lesson from iteration 2: it was not judged",)


def test_nothing_is_best_before_the_first_judgement(tmp_path):
    folder = SessionFolder.create(tmp_path)
    iteration = folder.iterate(1, None)
    run = IterationRecord(iteration.path / "base_seed_1")
    run.set_status("failed", "the reward raised ZeroDivisionError in line 3")
    client = Scripted([proposal()])
    revise(client, folder.view(), 1)
    request = asked(client)
    assert (request.best_iteration, request.best_reward_code) == (None, "")
    assert request.training_error == "the reward raised ZeroDivisionError in line 3"


def test_remarks_must_be_taken_up(folder):
    folder.remark(1, "do not jump")
    client = Scripted([proposal(), proposal(remarks_taken_up="a penalty on height")])
    revision = revise(client, folder.view(), 1)
    assert asked(client).remarks == ("do not jump",)
    assert "do not jump" in client.complaints[0]
    assert revision.remarks_taken_up == "a penalty on height"


@pytest.mark.parametrize(("later", "stagnates"), [(2, False), (3, True)])
def test_three_iterations_without_a_new_best_call_for_another_structure(folder, later, stagnates):
    for number in range(2, 2 + later):
        folder.iterate(number, 0.4, parent=1)
    client = Scripted([proposal(reward_code=reward(99))])
    revise(client, folder.view(), 1 + later)
    text = asked(client).stagnation
    assert ("change the structure" in text) == stagnates


def test_iterations_that_nobody_judged_are_no_stagnation(folder):
    for number in range(2, 6):
        folder.iterate(number, None, parent=1)
    client = Scripted([proposal(reward_code=reward(99))])
    revise(client, folder.view(), 5)
    assert asked(client).stagnation == ""


def test_a_long_session_still_fits_into_one_question(folder):
    folder.iterate(69, 0.3, parent=1)
    lineage = folder.view().lineage
    for number in range(2, 69):
        node = LineageNode(iteration=number, parent=1, score=0.3, changes="change " * 200)
        lineage = lineage.add(node)
    for number in range(40):
        lineage = lineage.learn(Lesson(text=f"lesson {number} " + "word " * 90, learned_at=1))
    folder.save_lineage(lineage)
    client = Scripted([proposal(reward_code=reward(99), based_on=69)])
    revision = revise(client, folder.view(), 69)
    request = asked(client)
    assert len(request.lessons) == 25
    assert [past.iteration for past in request.history][:2] == [1, 30]
    assert len(json.dumps(client.questions[0].prompt)) < 90_000
    assert len(revision.lessons) == 41


def test_without_criteria_or_its_place_in_the_lineage_there_is_nothing_to_revise(folder):
    with pytest.raises(ValueError, match="no iteration 2 in its lineage"):
        revise(Scripted([]), folder.view(), 2)
    (folder.record.path / "intent.json").unlink()
    with pytest.raises(ValueError, match="no criteria"):
        revise(Scripted([]), folder.view(), 1)
