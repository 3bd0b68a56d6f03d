"""From flat options to a LoopConfig, and what may change when a session goes on."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from p2p.api import schemas
from p2p.benchmark.planning import BenchmarkRequest
from p2p.commands.benchmark import BenchmarkGroup
from p2p.commands.jobs import SubmitCommand
from p2p.commands.run import ResumeCommand, RunCommand, program
from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import SessionConfig, utc_now
from p2p.scheduler.controllers import JobOptions
from p2p.session.request import (
    ResumeHere,
    ResumeOptions,
    SessionOptions,
    SessionRequest,
    TrainerOptions,
    loop_config,
    with_changes,
)
from p2p.training.hp_presets import EVALUATION, config_from_preset


def test_flat_options_find_their_place_and_what_is_set_is_fixed() -> None:
    loop = loop_config(
        "Hopper-v5", iterations=7, timesteps=9000, seeds=3, learning_rate=1e-4, vlm=None
    )
    assert (loop.train.env_id, loop.max_iterations, loop.seeds) == ("Hopper-v5", 7, (1, 2, 3))
    assert (loop.train.total_timesteps, loop.train.learning_rate) == (9000, 1e-4)
    assert loop.fixed == ("learning_rate", "total_timesteps")


def test_a_number_of_configurations_gives_different_ones_that_can_be_trained() -> None:
    loop = loop_config("Ant-v5", configs=4)
    made = [loop.train.with_updates(**entry.params) for entry in loop.configs]
    assert len({config.to_json() for config in made}) == 4
    assert len({entry.config_id for entry in loop.configs}) == 4


def test_a_whole_train_config_counts_as_it_is() -> None:
    loop = loop_config("Ant-v5", train=TrainConfig(num_envs=3, num_minibatches=3))
    assert (loop.train.num_envs, loop.train.env_id, loop.fixed) == (3, "Ant-v5", ())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"itterations": 3}, "iterations"),
        ({"seeds": 0}, "1 to 1000"),
        ({"seeds": 10**10}, "1 to 1000"),
        ({"configs": 0}, "configs"),
        ({"pass_threshold": 2}, "pass_threshold"),
        ({"use_code_judge": False}, "no judge"),
        ({"train": "quick"}, "train"),
    ],
)
def test_what_makes_no_sense_is_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        loop_config("Ant-v5", **options)


def test_a_session_trains_with_the_tuned_preset_and_judges_as_always() -> None:
    loop = loop_config("HalfCheetah-v5", use_zoo_preset=True, num_envs=16)
    tuned = config_from_preset("HalfCheetah-v5", num_envs=16)
    assert loop.train == tuned.with_updates(**EVALUATION)
    assert loop.train != loop_config("HalfCheetah-v5", num_envs=16).train
    assert loop.fixed == ("num_envs",)
    with pytest.raises(ValueError, match=r"use_zoo_preset\n.*no preset for Pusher-v5"):
        loop_config("Pusher-v5", use_zoo_preset=True)


def test_a_session_resumes_with_more_money_but_not_in_another_environment() -> None:
    config = SessionConfig(
        session_id="session_x",
        prompt="run",
        loop=loop_config("Ant-v5"),
        created_at=utc_now(),
        version="1",
    )
    changes = ResumeOptions.model_validate({"budget_usd": 5.0, "iterations": None})
    assert with_changes(config, changes).loop.budget_usd == 5.0
    assert with_changes(config, ResumeOptions()) is config
    with pytest.raises(ValueError, match=r"seeds\n.*not permitted"):
        ResumeOptions.model_validate({"seeds": (1, 2)})


def test_a_request_takes_every_name_of_an_option_and_settings_give_way() -> None:
    request = SessionRequest.model_validate(
        {
            "prompt": "run",
            "steps": 5000,
            "num_configs": 2,
            "vlm": "ollama:qwen",
            "settings": {"iterations": 9, "env_id": "Hopper-v5", "model": "builtin", "vlm": "x:y"},
            "max_iterations": 3,
        }
    )
    assert (request.environment, request.model, request.vlm_model) == (
        "Hopper-v5", "builtin", "ollama:qwen",
    )  # fmt: skip
    loop = loop_config(request.environment, **request.options())
    assert (loop.max_iterations, loop.train.total_timesteps, len(loop.configs)) == (3, 5000, 2)


def fields_with_flags(command: Any) -> set[str]:
    return {option.name for option in command.flag_options if "__" not in option.name}


def test_all_doors_have_the_options_of_one_model() -> None:
    by_hand = {"prompt", "criteria"}
    options, request = set(SessionOptions.model_fields), set(SessionRequest.model_fields)
    resume = set(ResumeOptions.model_fields)
    assert resume < options < request
    job, own = set(JobOptions.model_fields), set(TrainerOptions.model_fields)
    doors = {
        RunCommand("run"): request - by_hand | own,
        SubmitCommand("submit"): request - by_hand | job - {"title", "time_limit_s"},
        BenchmarkGroup(name="benchmark"): set(BenchmarkRequest.model_fields),
        ResumeCommand("resume"): set(ResumeHere.model_fields),
    }
    for command, fields in doors.items():
        assert fields_with_flags(command) == fields, command.name
    assert {p.name for p in typer.main.get_command(program).flag_options} >= request - by_hand
    assert issubclass(schemas.StartSessionRequest, SessionRequest)
    assert issubclass(schemas.SubmitJobRequest, SessionRequest)
    assert issubclass(schemas.StartBenchmarkRequest, BenchmarkRequest)
    assert set(schemas.ResumeRequest.model_fields) == resume
    known = LoopConfig.model_fields.keys() | TrainConfig.model_fields.keys() | {"settings"}
    assert options <= known, "a session knows each of them"
