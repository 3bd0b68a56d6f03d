"""What prompts are read as: goals, hard criteria, words that nothing measures, refusals."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.builtin.grammar import parse
from p2p.agents.builtin.lexicon import MANNERS, expand_pattern, manner_of, motion_tables
from p2p.agents.builtin.motions import MEASURED
from p2p.agents.requests import IntentProposal, IntentRequest

READINGS = tomllib.loads(Path(__file__).with_name("readings.toml").read_text())
PLAIN = tomllib.loads(Path(__file__).with_name("plain_words.toml").read_text())


def propose(env_id: str, prompt: str) -> IntentProposal:
    return write_criteria(IntentRequest(prompt=prompt, env_id=env_id))


@pytest.mark.parametrize(("prompt", "goals", "unused"), READINGS["goals"])
def test_a_prompt_becomes_its_goals(prompt: str, goals: list[str], unused: list[str]) -> None:
    parsed = parse(prompt)
    words = [
        [" ".join(word or "-" for word in (goal.motion, goal.direction, goal.speed)).rstrip(" -")
         for goal in part]
        for part in parsed.parts
    ]  # fmt: skip
    assert [" + ".join(part) for part in words] == goals
    assert list(parsed.unused) == unused


@pytest.mark.parametrize(("env_id", "prompt", "other"), READINGS["same"])
def test_prompts_that_ask_for_the_same_get_the_same_criteria(
    env_id: str, prompt: str, other: str
) -> None:
    assert propose(env_id, prompt).criteria == propose(env_id, other).criteria
    assert not propose(env_id, prompt).unused_words


@pytest.mark.parametrize(("env_id", "prompt", "measures", "unchecked"), READINGS["criteria"])
def test_each_part_of_a_demand_is_a_hard_task_or_named_as_unchecked(
    env_id: str, prompt: str, measures: list[str], unchecked: list[str]
) -> None:
    proposal = propose(env_id, prompt)
    task = [c.measure for c in proposal.criteria if c.category == "task" and c.hard]
    assert task, proposal.refusal
    assert all(any(each.startswith(measure) for each in task) for measure in measures), task
    assert list(proposal.unused_words) == unchecked


@pytest.mark.parametrize(("env_id", "prompt", "reason"), READINGS["refusals"])
def test_what_cannot_be_done_is_refused_before_anything_is_trained(
    env_id: str, prompt: str, reason: str
) -> None:
    proposal = propose(env_id, prompt)
    assert proposal.criteria == ()
    assert reason in proposal.refusal


def test_every_word_for_a_motion_is_plain_or_has_a_manner() -> None:
    patterns = {(m, each) for m, phrases in motion_tables() for each in phrases}
    plain = {(motion, each) for motion, phrases in PLAIN.items() for each in phrases}
    unsorted = {
        (motion, pattern)
        for motion, pattern in patterns
        if any(manner_of(phrase) is None for phrase in expand_pattern(pattern))
    }
    assert unsorted == plain, "sort them into plain_words.toml or manners of motions.toml"


def test_every_manner_is_measured_or_known_as_unchecked() -> None:
    assert {manner for manner in MANNERS.values() if manner} <= MEASURED


@pytest.mark.parametrize(
    ("prompt", "slowest", "fastest"),
    [
        ("run at 2 m/s", 1.7, 2.3),
        ("run at least at 2 m/s", 2.0, None),
        ("run faster than half a metre per second", 0.5, None),
        ("run no faster than 2 m/s", 1.0, 2.0),
        ("run without ever going faster than 2 m/s", 1.0, 2.0),
    ],
)
def test_a_bound_on_a_speed_is_no_target(
    prompt: str, slowest: float, fastest: float | None
) -> None:
    proposal = propose("HalfCheetah-v5", prompt)
    goes = proposal.criteria[0]
    assert proposal.unused_words == ()
    if fastest is None:
        assert (goes.comparison, goes.threshold) == ("at_least", slowest)
    else:
        middle = float(goes.measure.split(" from ")[1].split()[0])
        assert (middle - goes.threshold, middle + goes.threshold) == pytest.approx(
            (slowest, fastest)
        )


@pytest.mark.parametrize(
    ("env_id", "prompt", "near"),
    [
        ("Reacher-v5", "reach the target within 1 cm", 0.01),
        ("Pusher-v5", "push the object to within 5 cm of the goal", 0.05),
        # On its mark, a disc of 8 cm, above which its middle is 4.8 cm.
        ("Pusher-v5", "push the object to the goal", 0.0933),
    ],
)
def test_how_near_is_said_or_shown_is_asked_for(env_id: str, prompt: str, near: float) -> None:
    proposal = propose(env_id, prompt)
    assert not proposal.unused_words
    (task,) = (c for c in proposal.criteria if c.measure.endswith("at the end"))
    assert task.threshold == near


def test_forbidden_gait_is_not_asked_for() -> None:
    measures = [c.measure for c in propose("Humanoid-v5", "do not walk, just turn").criteria]
    assert "mean counterclockwise turning rate" in " ".join(measures)
    assert not [measure for measure in measures if "touch-downs" in measure]


def test_low_posture_that_is_only_held_asks_for_no_rise() -> None:
    for prompt, rises in (("crouch low, then hold still", False), ("crouch, then stand", True)):
        titles = " ".join(c.title for c in propose("Hopper-v5", prompt).criteria)
        assert ("full height" in titles) == rises
