"""What a word says beyond its motion is measured or named."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.builtin.lexicon import LEXICON, MANNERS, SIMILES, manner_of
from p2p.agents.builtin.manners import MEASURED
from p2p.agents.requests import IntentProposal, IntentRequest

PLAIN = tomllib.loads(Path(__file__).with_name("plain_words.toml").read_text())


def propose(env_id: str, prompt: str) -> IntentProposal:
    return write_criteria(IntentRequest(prompt=prompt, env_id=env_id))


def test_every_word_for_a_motion_is_plain_or_has_a_manner() -> None:
    phrases = {p: e.value for p, e in LEXICON.items() if e.slot == "motion"}
    phrases |= {phrase: motion for phrase, (motion, _, _) in SIMILES.items()}
    unsorted = {p for p, m in phrases.items() if manner_of(p) is None and p not in PLAIN.get(m, ())}
    assert not unsorted, "say in plain_words.toml or in _MANNERS of the lexicon what they mean"
    assert not {p for words in PLAIN.values() for p in words if manner_of(p) is not None}


def test_every_manner_is_measured_or_known_as_unchecked() -> None:
    assert {manner for manner in MANNERS.values() if manner} <= MEASURED


@pytest.mark.parametrize(
    ("env_id", "prompt"),
    [
        ("Walker2d-v5", "take a leisurely walk forward, one leg after the other, at around 1 m/s"),
        ("HalfCheetah-v5", ("hop, both sets of legs leaving the ground simultaneously, multiple "
         "distinct hops")),
        ("Swimmer-v5", "Swim the wrong way, towards negative x"),
        ("Swimmer-v5", ("Glide forward while spending as little muscle effort as you can get away "
         "with")),
        ("HalfCheetah-v5", ("Glide forward while spending as little muscle effort as you can get "
         "away with")),
        ("HalfCheetah-v5", "Trot forward as if balancing a tray of drinks on your back"),
        ("Ant-v5", "walk in the -y direction"),
        ("Ant-v5", "Trot in the +y direction"),
        ("Humanoid-v5", "march on the spot with high knees"),
        ("HalfCheetah-v5", ("Trot forward with a level back, as if balancing a tray of drinks")),
        ("HalfCheetah-v5", "Could you kindly keep going forward from start to finish, please?"),
        ("Hopper-v5", "Basically just stand exactly as still as a statue for 3 seconds"),
        ("Reacher-v5", "Sweep smoothly over to the goal and stay there until the end"),
        ("InvertedPendulum-v5", "Prevent the rod from falling for as long as you can manage"),
        ("Ant-v5", "Amble forward, four-beat, unhurried"),
    ],
)  # fmt: skip
def test_what_a_criterion_measures_is_not_called_unchecked(env_id: str, prompt: str) -> None:
    proposal = propose(env_id, prompt)
    assert proposal.criteria, proposal.refusal
    assert proposal.unused_words == ()


@pytest.mark.parametrize(
    ("env_id", "prompt", "unchecked"),
    [
        ("Walker2d-v5", "please walk forward cheerfully", "cheerfully"),
        ("Humanoid-v5", "walk proudly", "proudly"),
        ("Hopper-v5", "simply hop forward angrily", "angrily"),
        ("Ant-v5", "waddle forward nicely", "waddle"),
        ("Ant-v5", "walk forward while waving", "waving"),
        ("Walker2d-v5", "walk forward wearing a hat", "hat"),
        ("HalfCheetah-v5", "run forward with three legs", "three"),
        ("Hopper-v5", "hop forward in a triangle", "triangle"),
        ("Ant-v5", "make a U-turn", "3.14 rad"),
        ("Ant-v5", "walk forward for 200 seconds", "200 s"),
        ("Ant-v5", "walk forward for 3 seconds, then stop", "3 s"),
    ],
)
def test_a_demand_that_nothing_measures_is_not_silent(
    env_id: str, prompt: str, unchecked: str
) -> None:
    assert unchecked in propose(env_id, prompt).unused_words


@pytest.mark.parametrize(
    ("env_id", "prompt", "measure"),
    [
        ("Swimmer-v5", "Swim the wrong way, towards negative x", "mean backward speed"),
        ("Ant-v5", "walk along the negative x axis", "mean backward speed"),
        ("Ant-v5", "walk towards +y", "mean speed to the left"),
        ("Ant-v5", "go in the -y direction", "mean speed to the right"),
        ("HalfCheetah-v5", "run lazily", "mean effort"),
        ("HalfCheetah-v5", "run forward with as little energy as possible", "mean effort"),
        ("HalfCheetah-v5", "run tail first", "mean backward speed"),
    ],
)
def test_directions_and_economy_are_hard_tasks(env_id: str, prompt: str, measure: str) -> None:
    task = [c for c in propose(env_id, prompt).criteria if c.category == "task" and c.hard]
    assert any(criterion.measure.startswith(measure) for criterion in task)
