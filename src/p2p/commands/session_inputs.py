"""What a session is to do: from arguments to a LoopConfig."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from p2p.commands.console import UsageError, field_errors, no_answer
from p2p.commands.train_inputs import parse_setting

if TYPE_CHECKING:
    from p2p.config import LoopConfig

FLAGS = {
    "max_iterations": "--iterations",
    "total_timesteps": "--timesteps",
    "pass_threshold": "--threshold",
    "budget_usd": "--budget-usd",
    "max_minutes": "--max-minutes",
    "vlm_model": "--vlm",
    "seeds": "--seeds",
    "configs": "--configs",
    "trainer": "--trainer",
}
"""Fields that have a flag."""


def read_prompt(prompt: str | None) -> str:
    """The sentence; `-` reads it from standard input."""
    if prompt is None:
        raise UsageError('say what the agent should do, as in: p2p run "run forward fast"')
    text = " ".join((sys.stdin.read() if prompt == "-" else prompt).split())
    if not text:
        raise UsageError("the prompt is empty: say what the agent should do")
    return text


def read_seeds(text: str | None) -> int | tuple[int, ...] | None:
    """How many seeds, or which."""
    if text is None:
        return None
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"--seeds {text}: write a number, or a list such as 1,5,7") from error
    return numbers if "," in text else numbers[0]


def read_settings(items: list[str]) -> dict[str, Any]:
    """What --set says, which must leave alone what each run has of its own."""
    found = dict(parse_setting(item) for item in items)
    if "seed" in found:
        raise UsageError("--set seed: every run has its own; say which with --seeds")
    if "iteration_id" in found:
        raise UsageError("--set iteration_id: runs are named by what they train")
    return found


def check_models_named(model: str | None, vlm: str | None) -> None:
    """Before there is a session: a name nobody knows is a mistake, and a key has to be there."""
    from p2p.inference.question import InferenceError, RequestRejected
    from p2p.session.agents import check_models

    try:
        check_models(model or "", vlm or "")
    except RequestRejected as error:
        raise UsageError(f"--model, --vlm: {error}") from error
    except InferenceError as error:
        raise no_answer(error) from error


def make_loop(env_id: str | None, options: dict[str, Any]) -> LoopConfig:
    """The LoopConfig that flags describe; UsageError names the flag that is wrong."""
    from pydantic import ValidationError

    from p2p.session.session_config import loop_config

    try:
        return loop_config(env_id, **options)
    except ValidationError as error:
        raise UsageError(in_flags(field_errors(error, "options"))) from error
    except ValueError as error:
        raise UsageError(error) from error


def in_flags(text: str) -> str:
    """Names of options as they were typed."""
    for field, flag in FLAGS.items():
        text = text.replace(f" {field}:", f" {flag}:")
    return text
