"""What a model may look up: right, short, and never an exception for what it asks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_servers import Answer, ModelServer
from model_wire import Call

from p2p.agents.revise_tool_dispatch import SessionTools, history_notes, trend
from p2p.contracts import Lesson, LessonCheck, LineageNode, SessionAnalysis
from p2p.files import save_model
from p2p.inference.agent_tools import LONGEST_RESULT
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import Question
from p2p.records.iteration_record import IterationRecord
from p2p.settings import get_settings
from p2p.training.evaluation import record_episodes
from p2p.training.trajectory import RecordedEpisode
from session_folder import TRAIN, SessionFolder, judgment, reward

NAMES = ("get_iteration", "get_episode", "compare_iterations", "get_history", "update_lesson")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four iterations, the last of which could not be judged."""
    folder = SessionFolder.create(tmp_path_factory.mktemp("tools"))
    first = folder.iterate(1, 0.2, seeds=(1, 2))
    folder.iterate(2, 0.6, parent=1, changes="twice the speed")
    slow = TRAIN.with_updates(gamma=0.9)
    folder.iterate(3, 0.5, parent=2, train=slow, changes="less gamma")
    folder.iterate(4, None, parent=2)
    streamed = IterationRecord(first.path / "base_seed_1").path / "streaming_judgments"
    save_model(streamed / "50000.json", judgment(0.1, step=50_000))
    lesson = Lesson(text="speed pays", learned_at=1)
    folder.save_lineage(folder.view().lineage.learn(lesson))
    return folder


@pytest.fixture
def tools(folder):
    return SessionTools(folder.view())


def test_tools_follow_what_the_session_has(folder, tmp_path):
    assert {tool.__name__ for tool in SessionTools(folder.view()).all()} == set(NAMES)
    names = [tool.__name__ for tool in SessionTools(folder.view()).reading()]
    assert set(NAMES) - set(names) == {"update_lesson"}
    fresh = SessionFolder.create(tmp_path)
    fresh.iterate(1, 0.4)
    names = [tool.__name__ for tool in SessionTools(fresh.view(), 1).all()]
    assert names == ["get_iteration", "get_episode"]


def test_get_iteration_gives_the_whole_reward_code(tools):
    assert tools.get_iteration("reward_code", 2) == reward(2)
    missing = tools.get_iteration("reward_code", 9)
    assert missing == "error: there is no iteration 9; there are 1, 2, 3, 4"
    assert "choose from reward_code, training" in tools.get_iteration("all", 2)


def test_get_iteration_describes_the_training_of_a_run(tools):
    text = tools.get_iteration("training", 1)
    assert "run base_seed_1: completed" in text
    assert "return: rising" in text
    assert "speed: 75%" in text
    assert "evaluation at step 100000: 90" in text
    assert "run base_seed_2" in tools.get_iteration("training", 1, "base_seed_2")
    unknown = tools.get_iteration("training", 1, "x")
    assert unknown == "error: iteration 1 has no run x; it has base_seed_1, base_seed_2"


def test_get_iteration_describes_judgments_and_checkpoints(tools):
    text = tools.get_iteration("judgment", 2)
    assert "score of the checkpoint at step 100000: 0.60 ± 0.05, not passed" in text
    assert "  speed: 0.60 ± 0.10, measured 1.8, measured" in text
    assert "episode seed_8: 0.60" in text
    unjudged = tools.get_iteration("judgment", 4)
    assert "code could not judge: it timed out" in unjudged
    checkpoints = tools.get_iteration("checkpoints", 1)
    assert "at step 50000: 0.10" in checkpoints
    assert "at step 100000: 0.20" in checkpoints
    assert "episode" not in checkpoints


def test_get_iteration_compares_its_runs(tools):
    text = tools.get_iteration("runs", 1)
    assert "base (best): return 10 ± 1" in text
    assert "base_seed_2: completed, score 0.20" in text


def test_get_episode_finds_a_judged_episode_by_label(tools):
    text = tools.get_episode("seed_8", iteration=1)
    assert text == tools.get_episode("seed_8", step=100_000, iteration=1)
    assert "episode 8 is slow" in text
    assert "judge code: 0.20" in text
    unknown = tools.get_episode("p50", iteration=1)
    assert unknown == "error: no judged episode 'p50'; there are seed_7, seed_8"
    unjudged = tools.get_episode("seed_8", step=7, iteration=1)
    assert unjudged == "error: no judgement of step 7; judged are 50000, 100000"


def test_two_iterations_are_compared_in_score_hyperparameters_and_code(tools):
    text = tools.compare_iterations(2, 3)
    assert "score: 0.60 -> 0.50" in text
    assert "  speed: 0.60 -> 0.50" in text
    assert "hyperparameters: gamma: 0.99 -> 0.9" in text
    assert '-    speed = 2 * info["x_velocity"]' in text
    assert '+    speed = 3 * info["x_velocity"]' in text
    assert "score: 0.20 -> not judged" in tools.compare_iterations(1, 4)


def test_the_history_has_notes_the_tree_and_lessons_by_number(tools):
    text = tools.get_history()
    assert text.startswith("3 of 4 iterations judged; trend: erratic")
    assert "iteration 3 lost 0.10 against 2" in text
    assert "*2 (from 1): score 0.60" in text
    assert "changes: twice the speed" in text
    assert " 4 (from 2): not judged" in text
    assert "[0] STRONG, from iteration 1: speed pays" in text


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.5], "too few"),
        ([0.5, 0.9], "new best"),
        ([0.5, 0.51, 0.5, 0.49], "plateau"),
        ([0.9, 0.3, 0.4, 0.5, 0.6], "improving"),
        ([0.9, 0.8, 0.7, 0.6], "declining"),
        ([0.9, 0.2, 0.8, 0.3], "erratic"),
    ],
)
def test_trend_of_scores(scores, expected):
    assert trend(scores) == expected


def test_history_notes_name_circles_and_failures_that_stay():
    scores = (0.1, 0.2, None, 0.1)
    nodes = [
        LineageNode(iteration=n, score=score, failure_tags=("fell",))
        for n, score in enumerate(scores, 1)
    ]
    gammas = {number: {"gamma": gamma} for number, gamma in ((1, 0.9), (2, 0.8), (4, 0.9))}
    first, *notes = history_notes(nodes, gammas)
    assert first.startswith("3 of 4 iterations judged")
    assert notes == [
        "failures that stay, of 3 iterations: fell in 3",
        "iterations 1, 2, 4 go back and forth in gamma",
    ]


def test_a_lesson_is_noted_and_nothing_on_disk_changes(folder, tools):
    before = folder.view().lineage
    check = LessonCheck(kind="term_required", name="speed")
    assert "lesson 0 becomes HARD" in tools.update_lesson(0, "HARD", "seen", check)
    assert tools.updates[0].check == check
    assert "no lesson 1" in tools.update_lesson(1, "HARD", "seen")
    assert "'EASY' is no tier" in tools.update_lesson(0, "EASY", "seen")
    assert list(tools.updates) == [0]
    assert folder.view().lineage == before


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_no_input_makes_a_tool_raise_or_talk_without_end(folder, name, data):
    number = st.integers(-3, 10) | st.integers()
    some = st.none() | number
    text = st.sampled_from(["", "base_seed_1", "../x"]) | st.text(max_size=20)
    part = st.sampled_from(["reward_code", "training", "judgment", "checkpoints", "runs"]) | text
    columns = st.none() | st.lists(text, max_size=3)
    arguments = {
        "get_iteration": (part, some, text),
        "get_episode": (text, columns, some, number, some, some, text),
        "compare_iterations": (number, number),
        "update_lesson": (number, text, text),
    }.get(name, ())
    tool = getattr(SessionTools(folder.view()), name)
    answer = tool(*(data.draw(argument) for argument in arguments))
    assert isinstance(answer, str)
    assert answer
    assert len(answer) < LONGEST_RESULT + 100


def test_a_session_without_iterations_is_answered_too(tmp_path):
    tools = SessionTools(SessionFolder.create(tmp_path).view())
    nothing = "error: there is no iteration yet"
    assert tools.get_iteration("reward_code") == tools.get_episode() == nothing
    assert tools.get_history() == "no iterations yet"


def test_a_model_can_call_them_through_the_client(folder, tmp_path, monkeypatch):
    """The schemas are made from hints and docstrings, and a call with JSON arrives as typed."""
    tools = SessionTools(folder.view())
    check = {"kind": "term_required", "name": "speed"}
    given = {"index": 0, "tier": "HARD", "reason": "seen", "check": check}
    question = Question(
        role="session_analyzer",
        instructions="",
        prompt="go",
        output=SessionAnalysis,
        tools=tools.all(),
        max_tool_calls=3,
    )
    script = [Call("update_lesson", given), Answer({"summary": "done", "author": ""})]
    with ModelServer(script) as server:
        for name, value in server.environment("anthropic").items():
            monkeypatch.setenv(name, value)
        get_settings.cache_clear()
        assert LLMClient(server.model("anthropic"), folder=tmp_path).ask(question).value.summary
    get_settings.cache_clear()
    assert "lesson 0 becomes HARD" in server.requests[-1].everything
    assert tools.updates[0].check == LessonCheck(kind="term_required", name="speed")
    schemas = {tool["name"]: tool["input_schema"] for tool in server.requests[0].body["tools"]}
    assert schemas.keys() >= {*NAMES}
    parameters = schemas["get_iteration"]["properties"]
    assert "checkpoints" in parameters["part"]["enum"]
    assert "empty for the best" in parameters["run_id"]["description"]


def test_steps_of_the_judged_episodes_can_be_looked_at_within_bounds(tmp_path):
    folder = SessionFolder.create(tmp_path)
    iteration = folder.iterate(1, 0.4)
    run = IterationRecord(iteration.path / "base_seed_1")
    tools = SessionTools(folder.view())
    assert "error: no recorded episode ''" in tools.get_episode(columns=["x_velocity"])
    config = TRAIN.with_updates(max_episode_steps=100)
    [episode] = record_episodes(config, "random", episodes=1, seed=1)
    episode.save(run.trajectory_file(100_000, "median"))
    text = tools.get_episode(columns=["x_velocity", "qpos[2]", "xpos[1,2]"])
    head, names, *rows = text.splitlines()
    assert (head, names) == ("median", "step x_velocity qpos[2] xpos[1,2]")
    assert len(rows) == 40
    last = (episode["x_velocity"][99], episode["qpos"][99, 2], episode["xpos"][99, 1, 2])
    assert rows[-1].split() == ["99", *(f"{value:.4g}" for value in last)]
    assert len(tools.get_episode(columns=["action[0]"], first=10, last=12).splitlines()) == 5
    # A reward term may be called as a column is.
    paid = {"x_velocity": np.zeros(100), "effort": np.zeros(100)}
    RecordedEpisode(episode.columns, paid).save(run.trajectory_file(100_000, "median"))
    columns = ["x_velocity", "reward_term_x_velocity", "effort"]
    row = tools.get_episode(columns=columns).splitlines()[-1]
    assert row.split() == ["99", f"{last[0]:.4g}", "0", "0"]
    for columns, options, complaint in (
        (["speed"], {}, "no column 'speed'; there are"),
        (["qpos"], {}, "has the shape [9]; ask for qpos[0]"),
        (["qpos[99]"], {}, "has the shape [9]"),
        ([], {}, "ask for 1 to 12 columns, not 0"),
        (["x_velocity"], {"first": 500}, "there are steps 0 to 99"),
        (["x_velocity"], {"episode": "seed_7"}, "no recorded episode 'seed_7'; there are median"),
    ):
        answer = tools.get_episode(columns=columns, **options)
        assert answer.startswith("error: ")
        assert complaint in answer
