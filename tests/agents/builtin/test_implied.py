"""What goes without saying: asked of every motion that does not contradict it."""

from __future__ import annotations

import numpy as np
import pytest

from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.builtin.implied import implied_criteria
from p2p.agents.builtin.measures import ENDS
from p2p.agents.builtin.morphology import morphology_of
from p2p.agents.builtin.quantities import quantities_of
from p2p.agents.requests import IntentRequest
from p2p.benchmark.suite import Case, load_suite
from p2p.contracts import Criterion, CriterionScore
from p2p.training.env_spec import get_env_spec

UP = {"Stays upright", "Does not tip over", "Does not sink down"}
FEET = "Only what carries it touches the ground"


def hard_criteria(prompt: str, env_id: str) -> dict[str, Criterion]:
    proposal = write_criteria(IntentRequest(prompt=prompt, env_id=env_id))
    return {each.title: each for each in proposal.criteria if each.hard}


@pytest.mark.parametrize(
    "env_id", ["Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Humanoid-v5"]
)
def test_a_robot_on_legs_is_to_stay_on_them(env_id: str) -> None:
    assert {*UP, FEET} <= set(hard_criteria("go forward", env_id))


@pytest.mark.parametrize(
    ("prompt", "env_id", "unasked"),
    [
        ("lie down", "HalfCheetah-v5", {*UP, FEET}),
        ("do a backflip", "HalfCheetah-v5", {*UP, FEET}),
        ("crawl forward", "Ant-v5", {"Does not sink down", FEET}),
        ("get up", "HumanoidStandup-v5", {*UP, FEET}),
        ("swim forward", "Swimmer-v5", {*UP, FEET}),
    ],
)
def test_what_the_prompt_contradicts_is_not_asked(
    prompt: str, env_id: str, unasked: set[str]
) -> None:
    assert unasked.isdisjoint(hard_criteria(prompt, env_id))


@pytest.mark.parametrize(
    "prompt",
    ["balance the pole but slowly sway left and right", "balance the pole, swaying gently"],
)
def test_pole_that_is_to_sway_is_not_asked_to_hold_still(prompt: str) -> None:
    proposal = write_criteria(IntentRequest(prompt=prompt, env_id="InvertedPendulum-v5"))
    unasked = {"Holds it without swaying", "Keeps the cart near the middle"}
    assert unasked.isdisjoint(each.title for each in proposal.criteria)


@pytest.mark.parametrize(
    ("prompt", "env_id"),
    [
        ("walk forward, then walk backward, then stand still", "Humanoid-v5"),
        ("hop forward, then hop backward, then stand still, smoothly and symmetrically",
         "Hopper-v5"),
        ("walk forward, then run forward, then walk backward slowly", "Walker2d-v5"),
    ],
)  # fmt: skip
def test_a_long_sequence_drops_nothing_that_is_hard(prompt: str, env_id: str) -> None:
    usual = {each.title for each in implied_criteria(env_id, prompt) if each.hard}
    assert "Does not fall" in usual
    assert usual <= set(hard_criteria(prompt, env_id))


@pytest.mark.parametrize("case", load_suite("mujoco_prompts"), ids=lambda case: case.instruction)
def test_a_fall_in_any_episode_is_no_pass(case: Case) -> None:
    model = morphology_of(case.env_id)
    criteria = write_criteria(IntentRequest(prompt=case.instruction, env_id=case.env_id)).criteria
    ends = [c for c in criteria if c.hard and c.measure == ENDS]
    assert bool(ends) == model.may_end_early
    for criterion in ends:
        fell = CriterionScore(id=criterion.id, score=0.97, value=1.0)
        seen = CriterionScore(id=criterion.id, score=0.97, missed=1 / 16)
        assert not criterion.is_met(fell, 0.8)
        assert not criterion.is_met(seen, 0.8), "one of sixteen, by who could only look"


def test_effort_that_nobody_asked_for_is_soft_with_a_reason() -> None:
    proposal = write_criteria(IntentRequest(prompt="run forward", env_id="HalfCheetah-v5"))
    [effort] = [each for each in proposal.criteria if each.category == "efficiency"]
    assert not effort.hard
    assert effort.soft_reason


@pytest.mark.parametrize(
    ("prompt", "hard"),
    [
        ("stand still", False),
        ("stand upright and stay where you are", False),
        ("run forward", True),
        ("run forward, then stop and stand still", True),
    ],
)
def test_joints_may_rest_at_their_stops_while_it_keeps_still(prompt: str, hard: bool) -> None:
    asked = hard_criteria(prompt, "Ant-v5")
    assert ("Does not live off its joint stops" in asked) == hard


def test_models_are_given_the_same_criteria_as_builtin_adds() -> None:
    given = implied_criteria("Ant-v5", "walk forward")
    added = write_criteria(IntentRequest(prompt="walk forward", env_id="Ant-v5")).criteria
    told = {each.model_copy(update={"description": ""}) for each in added}
    assert set(given) <= told


def test_parts_that_do_not_carry_it_are_counted_on_the_ground() -> None:
    spec = get_env_spec("Humanoid-v5")
    names = [body.name for body in spec.bodies]
    contact = np.zeros((3, len(names)))
    for foot in spec.feet:
        contact[:, foot.body] = 1
    contact[1, names.index("torso")] = contact[2, names.index("torso")] = 1
    contact[2, names.index("left_lower_arm")] = 1
    code = quantities_of("Humanoid-v5")["other_contacts"].judge_code({"ground_contact"})
    counted = eval(str(code), {"np": np, "trajectory": {"ground_contact": contact}})  # noqa: S307
    assert counted.tolist() == [0, 1, 2]


def test_turning_is_about_the_vertical_of_the_world() -> None:
    """Of an ant on its side, which turns about its own y axis, and of one that is upright."""
    spec = get_env_spec("Ant-v5")
    qpos, qvel = np.zeros((2, 15)), np.zeros((2, 14))
    qpos[:, 3] = 1.0
    qpos[0, 3:7] = np.cos(np.pi / 4), np.sin(np.pi / 4), 0.0, 0.0  # its y axis points up
    qvel[0, 4], qvel[1, 5] = 0.7, 0.7
    code = quantities_of(spec.env_id)["turn_left_rate"].judge_code({"qpos", "qvel"})
    columns = {"qpos": qpos, "qvel": qvel}
    rates = eval(str(code), {"np": np, "trajectory": columns})  # noqa: S307
    np.testing.assert_allclose(rates, 0.7)


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [("lie down", True), ("lie on your back", False), ("play dead", False), ("lie still", False)],
)
def test_one_that_lies_down_lies_on_its_belly(prompt: str, asked: bool) -> None:
    assert ("Does not end on its back" in hard_criteria(prompt, "HalfCheetah-v5")) == asked
