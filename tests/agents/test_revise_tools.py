"""What a model may look up: right, short, and never an exception for what it asks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.agents.revise_tool_dispatch import SessionTools
from p2p.contracts import Lesson, LessonCheck, SessionAnalysis
from p2p.files import save_model
from p2p.inference.agent_tools import LONGEST_RESULT
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import Question
from p2p.records.iteration_record import IterationRecord
from p2p.training.evaluation import record_episodes
from session_folder import TRAIN, SessionFolder, judgment, reward

NAMES = (
    "get_iteration_reward_code",
    "get_iteration_training_dynamics",
    "compare_iterations",
    "get_iteration_judgment_detail",
    "get_checkpoint_judgments",
    "get_rollout_judgment",
    "get_trajectory",
    "get_config_comparison",
    "get_iteration_scores",
    "get_strategy_summary",
    "get_experiment_lineage",
    "update_experiment_lessons",
)


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


def test_all_tools_have_names_and_say_what_they_do(tools):
    found = [tool.__name__ for tool in tools.all()]
    assert sorted(found) == sorted(NAMES)
    assert all(tool.__doc__ for tool in tools.all())
    assert "update_experiment_lessons" not in [tool.__name__ for tool in tools.reading()]


def test_a_first_iteration_has_no_tools_about_a_history(tmp_path):
    folder = SessionFolder.create(tmp_path)
    folder.iterate(1, 0.4)
    names = {tool.__name__ for tool in SessionTools(folder.view(), 1).all()}
    assert "get_trajectory" in names
    history = {"compare_iterations", "get_iteration_scores", "get_strategy_summary"}
    assert not names & {*history, "get_experiment_lineage", "update_experiment_lessons"}


def test_the_reward_of_an_iteration_is_given_whole(tools):
    assert tools.get_iteration_reward_code(2) == reward(2)
    assert tools.get_iteration_reward_code(9) == (
        "error: there is no iteration 9; there are 1, 2, 3, 4"
    )


def test_training_is_told_of_the_best_or_a_named_run(tools):
    text = tools.get_iteration_training_dynamics(1)
    assert "run base_seed_1: completed" in text
    assert "return: rising" in text
    assert "speed: 75%" in text
    assert "evaluation at step 100000: 90" in text
    assert "run base_seed_2" in tools.get_iteration_training_dynamics(1, "base_seed_2")
    assert tools.get_iteration_training_dynamics(1, "x") == (
        "error: iteration 1 has no run x; it has base_seed_1, base_seed_2"
    )


def test_two_iterations_are_compared_in_score_hyperparameters_and_code(tools):
    text = tools.compare_iterations(2, 3)
    assert "score: 0.600 -> 0.500" in text
    assert "  speed: 0.600 -> 0.500" in text
    assert "hyperparameters: gamma: 0.99 -> 0.9" in text
    assert '-    speed = 2 * info["x_velocity"]' in text
    assert '+    speed = 3 * info["x_velocity"]' in text
    assert "score: 0.200 -> not judged" in tools.compare_iterations(1, 4)


def test_a_judgement_is_told_by_criterion_and_episode(tools):
    text = tools.get_iteration_judgment_detail(2)
    assert "score of the checkpoint at step 100000: 0.600 ± 0.05, not passed" in text
    assert "  speed: 0.600 ± 0.10, measured 1.8, measured" in text
    assert "episode 1: seed_8: 0.600" in text
    unjudged = tools.get_iteration_judgment_detail(4)
    assert "not judged" in unjudged
    assert "code could not judge: it timed out" in unjudged


def test_checkpoints_are_told_in_the_detail_that_is_asked_for(tools):
    all_scores = tools.get_checkpoint_judgments(iteration=1)
    assert all_scores == "step 50000: 0.100 ± 0.05\nstep 100000: 0.200 ± 0.05"
    one = tools.get_checkpoint_judgments(50_000, detail="summary", iteration=1)
    assert "speed: 0.100" in one
    assert "episode" not in one
    assert "episode 0" in tools.get_checkpoint_judgments(50_000, detail="all", iteration=1)
    assert tools.get_checkpoint_judgments(7, iteration=1) == (
        "error: no judgement of step 7; judged are 50000, 100000"
    )


def test_an_episode_is_found_by_label_or_number(tools):
    by_label = tools.get_rollout_judgment(rollout_label="seed_8", iteration=1)
    assert by_label == tools.get_rollout_judgment(100_000, episode_idx=1, iteration=1)
    assert "episode 8 is slow" in by_label
    assert "judge code: 0.200" in by_label
    for wrong in ({"episode_idx": 2}, {"rollout_label": "p50"}, {}):
        text = tools.get_rollout_judgment(iteration=1, **wrong)
        assert text == "error: no such episode; there are 0 to 1: seed_7, seed_8"


def test_configurations_are_compared(tools):
    assert "base (best): return 10 ± 1" in tools.get_config_comparison(iteration=1)
    text = tools.get_config_comparison("all", iteration=1)
    assert "base_seed_2: completed, score 0.200" in text


def test_scores_come_with_their_trend_and_those_that_are_missing(tools):
    text = tools.get_iteration_scores()
    assert text.splitlines()[0] == "trend: erratic"
    assert "4: not judged" in text
    assert tools.get_iteration_scores(1).splitlines()[1:] == ["2: 0.600"]


def test_the_strategy_says_what_each_change_brought(tools):
    text = tools.get_strategy_summary()
    assert "3 of 4 iterations judged" in text
    assert "2: twice the speed -> 0.60 (+0.40)" in text
    assert "iteration 3 lost 0.10 against 2" in text


def test_the_tree_has_its_lessons_by_number(tools):
    text = tools.get_experiment_lineage()
    assert "*2 (from 1): score 0.600" in text
    assert "[0] STRONG, from iteration 1: speed pays" in text


def test_a_lesson_is_noted_and_nothing_on_disk_changes(folder, tools):
    before = folder.view().lineage
    check = LessonCheck(kind="term_required", name="speed")
    assert "lesson 0 becomes HARD" in tools.update_experiment_lessons(0, "HARD", "seen", check)
    assert tools.updates[0].check == check
    assert "no lesson 1" in tools.update_experiment_lessons(1, "HARD", "seen")
    assert "'EASY' is no tier" in tools.update_experiment_lessons(0, "EASY", "seen")
    assert list(tools.updates) == [0]
    assert folder.view().lineage == before


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_no_input_makes_a_tool_raise_or_talk_without_end(folder, name, data):
    number = st.integers(-3, 10) | st.integers()
    text = st.sampled_from(["", "base_seed_1", "../x"]) | st.text(max_size=20)
    arguments = {
        "get_iteration_reward_code": (number,),
        "get_iteration_training_dynamics": (number, text),
        "compare_iterations": (number, number),
        "get_iteration_judgment_detail": (number, text),
        "get_checkpoint_judgments": (st.none() | number, text, text, st.none() | number),
        "get_rollout_judgment": (
            st.none() | number, text, st.none() | number, text, st.none() | number,
        ),
        "get_trajectory": (
            st.lists(text, max_size=3), text, number, st.none() | number, text, st.none() | number,
        ),
        "get_config_comparison": (text, st.none() | number),
        "get_iteration_scores": (st.none() | number,),
        "update_experiment_lessons": (number, text, text),
    }.get(name, ())  # fmt: skip
    tool = getattr(SessionTools(folder.view()), name)
    answer = tool(*(data.draw(argument) for argument in arguments))
    assert isinstance(answer, str)
    assert answer
    assert len(answer) < LONGEST_RESULT + 100


def test_a_session_without_iterations_is_answered_too(tmp_path):
    tools = SessionTools(SessionFolder.create(tmp_path).view())
    nothing = "error: there is no iteration yet"
    assert tools.get_iteration_reward_code(1) == nothing
    assert tools.get_config_comparison() == nothing
    assert tools.get_checkpoint_judgments() == nothing
    assert tools.get_iteration_scores() == "no iterations yet"
    assert tools.get_strategy_summary() == "no iteration is judged yet"
    assert tools.get_experiment_lineage() == "no iterations yet"


def test_a_model_can_call_them_through_the_client(folder, tmp_path):
    """The schemas are made from hints and docstrings, and a call with JSON arrives as typed."""
    from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
    from pydantic_ai.models.function import AgentInfo

    tools = SessionTools(folder.view())
    seen: list[AgentInfo] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(info)
        if len(seen) > 1:
            told = {"summary": str(messages[-1]), "author": ""}
            return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, told)])
        check = {"kind": "term_required", "name": "speed"}
        given = {"index": 0, "tier": "HARD", "reason": "seen", "check": check}
        return ModelResponse(parts=[ToolCallPart("update_experiment_lessons", given)])

    client = LLMClient("builtin", folder=tmp_path, builtin=answer)
    question = Question(
        role="session_analyzer",
        instructions="",
        prompt="go",
        output=SessionAnalysis,
        tools=tools.all(),
        max_tool_calls=3,
    )
    assert "lesson 0 becomes HARD" in client.ask(question).value.summary
    assert tools.updates[0].check == LessonCheck(kind="term_required", name="speed")
    schemas = {tool.name: tool for tool in seen[0].function_tools}
    assert sorted(schemas) == sorted(NAMES)
    parameters = schemas["get_checkpoint_judgments"].parameters_json_schema["properties"]
    assert parameters["detail"]["enum"] == ["aggregate", "summary", "all"]
    assert "none for all" in parameters["step"]["description"]


def test_steps_of_the_judged_episodes_can_be_looked_at_within_bounds(tmp_path):
    folder = SessionFolder.create(tmp_path)
    iteration = folder.iterate(1, 0.4)
    run = IterationRecord(iteration.path / "base_seed_1")
    tools = SessionTools(folder.view())
    assert "error: no recorded episode ''" in tools.get_trajectory(["x_velocity"])
    config = TRAIN.with_updates(max_episode_steps=100)
    [episode] = record_episodes(config, "random", episodes=1, seed=1)
    episode.save(run.trajectory_file(100_000, "median"))
    text = tools.get_trajectory(["x_velocity", "qpos[2]", "xpos[1,2]"])
    head, names, *rows = text.splitlines()
    assert (head, names) == ("median", "step x_velocity qpos[2] xpos[1,2]")
    assert len(rows) == 40
    last = (episode["x_velocity"][99], episode["qpos"][99, 2], episode["xpos"][99, 1, 2])
    assert rows[-1].split() == ["99", *(f"{value:.4g}" for value in last)]
    assert len(tools.get_trajectory(["action[0]"], first=10, last=12).splitlines()) == 5
    for columns, options, complaint in (
        (["speed"], {}, "no column 'speed'; there are"),
        (["qpos"], {}, "has the shape [9]; ask for qpos[0]"),
        (["qpos[99]"], {}, "has the shape [9]"),
        ([], {}, "ask for 1 to 12 columns, not 0"),
        (["x_velocity"], {"first": 500}, "there are steps 0 to 99"),
        (["x_velocity"], {"episode": "seed_7"}, "no recorded episode 'seed_7'; there are median"),
    ):
        answer = tools.get_trajectory(columns, **options)
        assert answer.startswith("error: ")
        assert complaint in answer
