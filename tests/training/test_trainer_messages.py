"""Whatever a reward sends in the trainer's name: it makes a run, or it fails the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from p2p.config import TrainConfig
from p2p.contracts import Alive, EvalReady, ScalarsReady, Started, TrainScalars
from p2p.sandbox import UntrustedResultError, read_message
from p2p.training.evaluation import summarize
from p2p.training.trainer_messages import MAX_SIGNS, TrainerMessages, longest_training_s

CONFIG = TrainConfig(
    env_id="InvertedPendulum-v5", num_envs=2, num_steps=64, total_timesteps=512, num_evals=2,
    num_eval_rounds=2, num_minibatches=4,
)  # fmt: skip
LAST = 512


def line(message: Any, **changes: Any) -> bytes:
    value = message.model_dump(mode="json")
    for path, change in changes.items():
        place = value
        *parents, name = path.split("__")
        for parent in parents:
            place = place[parent]
        place[name] = change
    return json.dumps(value).encode()


def started(step: int = 0) -> Started:
    return Started(
        backend="fast", start_step=step, total_timesteps=LAST, reward={"terms": {"a": "b"}},
        reward_calls="batch",
    )  # type: ignore[arg-type]  # fmt: skip


def scalars(step: int = 128) -> ScalarsReady:
    return ScalarsReady(scalars=TrainScalars(global_step=step, iteration=1, values={"sps": 1.0}))


def evaluation(step: int = 256) -> EvalReady:
    import numpy as np

    returns, lengths = np.arange(4.0), np.full(4, 10)
    result = summarize(step, returns, lengths, {"a": returns}, {"median": 1})
    return EvalReady(result=result, policy_file="p.safetensors", trajectory_files={"median": "m"})


def read(*lines: bytes) -> None:
    messages = TrainerMessages(CONFIG)
    for each in lines:
        messages.read(each)


def test_the_messages_of_a_run_pass_also_after_a_restart() -> None:
    read(line(started()), line(scalars(128)), line(scalars(256)), line(evaluation(256)))
    read(line(started(256)), line(scalars(384)), line(scalars(512)), line(evaluation(512)))
    read(line(started(512)), line(evaluation(512)))


FORGED: dict[str, Callable[[], list[bytes]]] = {
    "not JSON": lambda: [b"x"],
    "no object": lambda: [b"[1]"],
    "nested": lambda: [b"[" * 60_000],
    "nested within bounds of the parser": lambda: [b'{"type":' + b"[" * 100 + b"]" * 100 + b"}"],
    "a large integer": lambda: [line(started(), start_step=10**60)],
    "a negative step": lambda: [line(started(), start_step=-1)],
    "a start too late": lambda: [line(started(), start_step=LAST + 1)],
    "two starts": lambda: [line(started()), line(started())],
    "metrics before the start": lambda: [line(scalars())],
    "metrics after the end": lambda: [line(started()), line(scalars(LAST + 1))],
    "metrics twice": lambda: [line(started()), line(scalars()), line(scalars())],
    "metrics beyond the plan": lambda: [
        line(started()),
        *(line(scalars(step)) for step in range(1, 6)),
    ],
    "signs of life without end": lambda: [
        line(started()),
        *[line(Alive(phase="eval", global_step=1))] * (MAX_SIGNS + 1),
    ],
    "many metrics": lambda: [
        line(started()),
        line(scalars(), scalars__values={f"k{i}": 1.0 for i in range(100_000)}),
    ],
    "long names": lambda: [line(started()), line(scalars(), scalars__values={"k" * 10_000: 1.0})],
    "an evaluation before the start": lambda: [line(evaluation())],
    "an evaluation twice": lambda: [line(started()), line(evaluation()), line(evaluation())],
    "evaluations beyond the plan": lambda: [
        line(started()),
        *(line(evaluation(step)) for step in (1, 2, 3, 4)),
    ],
    "NaN returns": lambda: [line(started()), line(evaluation(), result__mean_return=float("nan"))],
    "NaN as text": lambda: [line(started()), line(evaluation(), result__mean_return="NaN")],
    "an infinite return": lambda: [line(started()), line(evaluation()).replace(b"3.0", b"1e999")],
    "more episodes than were played": lambda: [
        line(started()),
        line(evaluation(), result__all_returns=[1.0] * 5, result__episode_lengths=[1] * 5),
    ],
    "fewer lengths than returns": lambda: [
        line(started()),
        line(evaluation(), result__episode_lengths=[1]),
    ],
    "a rollout that was not played": lambda: [
        line(started()),
        line(evaluation(), result__rollouts={"median": 10**9}),
    ],
    "an unknown rollout": lambda: [
        line(started()),
        line(evaluation(), trajectory_files={f"r{i}": "m" for i in range(99)}),
    ],
    "an unknown key": lambda: [line(started(), more=1)],
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_message_fails_the_run_without_a_traceback_of_ours(kind: str) -> None:
    with pytest.raises(UntrustedResultError):
        read(*FORGED[kind]())


def test_texts_can_be_printed_and_written() -> None:
    message = read_message(rb'{"type": "failed", "message": "a\ud800b\u001b]52;c;x\u0007"}')
    assert message["message"].encode("utf-8").decode().isprintable()


def test_signs_of_life_do_not_stretch_a_training_for_ever() -> None:
    assert 3600 < longest_training_s(CONFIG) < 4 * 3600
    long = CONFIG.with_updates(total_timesteps=10_000_000)
    assert longest_training_s(long) > 10_000_000
