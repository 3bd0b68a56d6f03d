"""Gaits by touch-down phases, as numbers and through the judge that is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.builtin.gaits import (
    FOUR_LEGS,
    LF,
    LH,
    NEAR,
    RF,
    RH,
    TWO_LEGS,
    match_gait,
    match_skip,
    order_feet,
)
from p2p.agents.builtin.judge import write_judge
from p2p.agents.builtin.morphology import morphology_of
from p2p.agents.requests import IntentRequest, JudgeRequest

PHASES = {
    "walk": (0.25, 0.75, 0.0, 0.5),
    "trot": (0.0, 0.5, 0.5, 0.0),
    "pace": (0.0, 0.5, 0.0, 0.5),
    "bound": (0.0, 0.0, 0.5, 0.5),
    "gallop": (0.45, 0.55, 0.0, 0.1),
    "canter": (0.76, 0.0, 0.0, 0.21),
}


def contacts(
    phases: tuple[float, ...], duty: float, jitter: float = 0.0, period: int = 30
) -> np.ndarray:
    """Twenty strides of feet that touch down at these phases, late or early by the jitter."""
    noise = np.random.default_rng(0)
    contact = np.zeros((20 * period, len(phases)), dtype=bool)
    for foot, phase in enumerate(phases):
        for stride in range(-1, 21):
            start = round((stride + phase + jitter * noise.uniform(-1, 1)) * period)
            contact[max(0, start) : max(0, start + round(duty * period)), foot] = True
    return contact


def share(contact: np.ndarray, name: str, table: Any = FOUR_LEGS) -> float:
    gait = table[name]
    match = match_gait(contact, gait.patterns, gait.aloft, gait.duty, 2, 2)
    return float(np.mean(match >= NEAR))


@pytest.mark.parametrize("name", list(PHASES))
def test_each_gait_matches_itself_and_not_the_others(name: str) -> None:
    duty = 0.65 if name == "walk" else 0.25
    seen = {gait for gait in FOUR_LEGS if share(contacts(PHASES[name], duty), gait) >= 0.6}
    alike = {"walk": {"amble"}, "bound": {"gallop"}, "gallop": {"bound"}}.get(name, set())
    assert seen == {name} | alike


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1)])
def test_three_beats_are_no_trot(order: tuple[int, ...]) -> None:
    phases = tuple((0.76, 0.0, 0.0, 0.21)[place] for place in order)
    assert share(contacts(phases, 0.4), "trot") == 0.0


def test_a_trot_may_jitter_and_standing_is_none() -> None:
    assert share(contacts(PHASES["trot"], 0.5, jitter=0.1), "trot") > 0.9
    assert share(np.ones((600, 4), dtype=bool), "trot") == 0.0
    assert share(np.zeros((600, 4), dtype=bool), "trot") == 0.0
    flicker = np.random.default_rng(0).random((600, 4)) < 0.5
    assert share(flicker, "trot") == 0.0


def test_two_legs_walk_on_the_ground_and_skip_in_twos() -> None:
    assert share(contacts((0.0, 0.5), 0.6), "walk", TWO_LEGS) > 0.9
    assert share(contacts((0.0, 0.5), 0.3), "walk", TWO_LEGS) == 0.0
    assert share(contacts((0.0, 0.0), 0.6), "walk", TWO_LEGS) == 0.0
    skipping = contacts((0.0, 0.5), 0.15) | contacts((0.25, 0.75), 0.15)
    assert np.mean(match_skip(skipping, 2, 2)) > 0.8
    assert np.mean(match_skip(contacts((0.0, 0.5), 0.3), 2, 2)) == 0.0


def test_feet_are_ordered_by_where_they_stand() -> None:
    assert order_feet(morphology_of("Ant-v5")) == (LF, LH, RH, RF)
    assert order_feet(morphology_of("HalfCheetah-v5")) == (LH, LF)
    assert order_feet(morphology_of("Humanoid-v5")) == (RF, LF)
    assert order_feet(morphology_of("Walker2d-v5")) == (RF, LF)
    assert order_feet(morphology_of("Hopper-v5")) is None


def judged_trot(phases: tuple[float, ...]) -> float:
    """The score of “trots” for an Ant whose feet touch down at these phases (LF, LH, RH, RF)."""
    prompt, env_id = "trot forward", "Ant-v5"
    proposal = write_criteria(IntentRequest(prompt=prompt, env_id=env_id))
    trots = [criterion for criterion in proposal.criteria if criterion.title == "Trots"]
    assert trots[0].hard
    draft = write_judge(
        JudgeRequest(
            prompt=prompt,
            env_id=env_id,
            criteria=tuple(trots),
            columns={"foot_contact": "whether it touches"},
        )
    )
    names: dict[str, Any] = {}
    exec(draft.code, names)  # noqa: S102 - our own text
    contact = contacts(phases, 0.5, period=50)
    trajectory = {"step": np.arange(len(contact)), "foot_contact": contact}
    verdict = names["judge_fn"](trajectory, {"max_episode_steps": len(contact), "dt": 0.05})
    return float(verdict["criteria"][trots[0].id]["score"])


def test_the_written_judge_tells_a_trot_from_a_canter() -> None:
    assert judged_trot((0.0, 0.5, 0.0, 0.5)) == 1.0
    assert judged_trot((0.76, 0.0, 0.21, 0.0)) == 0.0
