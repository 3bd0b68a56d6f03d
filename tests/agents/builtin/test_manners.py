"""What a word says beyond its motion is measured or named."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.builtin.lexicon import LEXICON, MANNERS, SIMILES, manner_of
from p2p.agents.builtin.motions import MEASURED
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
        ("HalfCheetah-v5", "Do the opposite of running forward, at roughly 2 m/s"),
        ("Hopper-v5", "Hop the other way, in the direction of decreasing x"),
        ("Walker2d-v5", "Stroll ahead as if you had all day, no quicker than 1 m/s"),
        ("Swimmer-v5", "Make headway with the gentlest strokes possible"),
        ("Ant-v5", "Spin clockwise where you stand, without drifting off"),
        ("Walker2d-v5", "Walk forward but never lift both feet at once"),
        ("Ant-v5", "Move diagonally, forwards and to the right"),
        ("Humanoid-v5", "Stand like a statue, both feet on the ground"),
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
        ("Ant-v5", "walk to the ball", "ball"),
        ("Ant-v5", "walk around the object", "object"),
        ("Ant-v5", "walk all over the arena", "all over"),
        ("Ant-v5", "walk diagonally", "diagonally"),
        ("Ant-v5", "spin at most 2 times", "at most 2 times"),
        ("Walker2d-v5", "take big steps forward", "big"),
        ("Walker2d-v5", "walk, slow at first and fast in the end", "fast"),
        ("Humanoid-v5", "walk forward with your arms held out to the sides", "arms"),
        ("HalfCheetah-v5", "accelerate gradually from rest", "gradually"),
        ("Ant-v5", "walk around", "walk around"),
        ("Ant-v5", "walk this way and that way", "this way and that way"),
        ("Walker2d-v5", "walk like a robot", "like a robot"),
        ("Walker2d-v5", "squat repeatedly", "repeatedly"),
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


@pytest.mark.parametrize(
    ("env_id", "prompt", "measures"),
    [
        ("Ant-v5", "walk forward and to the right",
         ("mean forward speed", "mean speed to the right")),
        ("Ant-v5", "move forward and go left", ("mean forward speed", "mean speed to the left")),
        ("Ant-v5", "trot without wobbling", ("share of time with tilt of the torso at most 0.35",)),
        ("Ant-v5", "stand as tall as you can",
         ("mean height of the torso", "mean speed over ground")),
        ("Ant-v5", "rear up on your hind legs", ("share of time with height of the body4 over",)),
        ("Walker2d-v5", "come home", ("highest distance from where it began",)),
        ("Swimmer-v5", "turn around and swim back", ("highest distance from where it began",)),
        ("Walker2d-v5", "walk forward and stay there",
         ("mean forward speed in the first half", "mean speed over ground in the second half")),
        ("Walker2d-v5", "squat and stand up",
         ("share of time with height of the torso between",
          "mean speed over ground in the second half")),
        ("Ant-v5", "walk round and round", ("mean counterclockwise turning rate",)),
        ("Hopper-v5", "jump again and again", ("number of times that it comes to height of its",)),
        ("Hopper-v5", "hop as high as possible while moving forward",
         ("highest height of the torso", "mean forward speed")),
        ("Walker2d-v5", "run without leaving the ground",
         ("share of time with height of its lowest foot over the ground at most",)),
        ("Humanoid-v5", "stand still with your arms down", ("mean speed of its parts",)),
        ("HalfCheetah-v5", "do the opposite of running forward", ("mean backward speed",)),
    ],
)  # fmt: skip
def test_each_part_of_a_demand_is_a_hard_task(
    env_id: str, prompt: str, measures: tuple[str, ...]
) -> None:
    task = [c.measure for c in propose(env_id, prompt).criteria if c.category == "task" and c.hard]
    assert all(any(each.startswith(measure) for each in task) for measure in measures)


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
