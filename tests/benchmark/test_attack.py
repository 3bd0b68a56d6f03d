"""Attacks on the judge, and what a person would object to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.builtin.judge import write_judge
from p2p.agents.builtin.reward import read_recipe
from p2p.agents.requests import IntentRequest, JudgeRequest
from p2p.benchmark.attack import ALL, AttackResult, judge_attack, plan_attacks, train_attacks
from p2p.benchmark.truth.plausible import objections, watch
from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import Intent

DT, STEPS = 0.05, 100
Floats = NDArray[np.float64]


def intent(env_id: str, prompt: str) -> Intent:
    """The criteria of the built-in author."""
    proposal = write_criteria(IntentRequest(prompt=prompt, env_id=env_id))
    return Intent(prompt=prompt, env_id=env_id, criteria=proposal.criteria, author="builtin")


def held(env_id: str) -> tuple[Any, Floats]:
    """The model, and its start pose at every step: (T + 1, nq)."""
    base: Any = gymnasium.make(env_id).unwrapped
    return base.model, np.tile(base.init_qpos, (STEPS + 1, 1))


def seen(env_id: str, prompt: str, *, horizon: int = STEPS, **columns: Any) -> tuple[str, ...]:
    """What is objected to where these position coordinates (by index) are set after the start."""
    model, qpos = held(env_id)
    for name, values in columns.items():
        qpos[1:, int(name.removeprefix("q"))] = np.broadcast_to(values, STEPS + 1)[1:]
    return objections(prompt, [watch(model, qpos, dt=DT, horizon=horizon)])


def test_attacks_pay_for_criteria_and_nothing_else() -> None:
    asked = intent("HalfCheetah-v5", "run forward")
    attacks, unpaid = plan_attacks(asked, TrainConfig(env_id="HalfCheetah-v5"))
    # Only the judge measures these: no term of a reward pays for them.
    assert unpaid == (
        "Steps rather than slides",
        "Does not tip over",
        "Does not sink into the ground",
        "Does not tremble",
        "Does not live off its joint stops",
    )
    ids = {criterion.id for criterion in asked.criteria}
    for attack in attacks:
        recipe = read_recipe(attack.reward_code)
        assert recipe is not None
        assert all(set(term.criteria) <= ids and term.criteria for term in recipe.terms)
        assert "def failed" not in attack.reward_code


def test_each_hard_criterion_is_left_out_once() -> None:
    asked = intent("Hopper-v5", "stand")
    attacks, _ = plan_attacks(asked, TrainConfig(env_id="Hopper-v5"))
    assert attacks[0].title == ALL
    by_id = {attack.name.removeprefix("without_"): attack for attack in attacks[1:]}
    assert by_id.keys() <= {criterion.id for criterion in asked.criteria if criterion.hard}
    assert "stays_upright" in by_id
    for name, attack in by_id.items():
        recipe = read_recipe(attack.reward_code)
        assert recipe is not None
        assert all(name not in term.criteria for term in recipe.terms)


def test_criteria_without_a_reward_term_are_named() -> None:
    asked = intent("Hopper-v5", "hop forward")
    _, unpaid = plan_attacks(asked, TrainConfig(env_id="Hopper-v5"))
    assert "Hops again and again" in unpaid


def test_an_attack_is_trained_judged_and_kept(tmp_path: Path, small_config: TrainConfig) -> None:
    asked = intent("HalfCheetah-v5", "run forward")
    attacks, _ = plan_attacks(asked, small_config)
    [run] = train_attacks([(attacks[0], 3)], asked, small_config, tmp_path)
    code = write_judge(
        JudgeRequest(prompt=asked.prompt, env_id=asked.env_id, criteria=asked.criteria, columns={})
    ).code
    loop = LoopConfig(train=small_config, judge_episodes=1, confirm_episodes=2)
    result = judge_attack(run, asked, code, loop)
    assert (result.error, result.passed, result.seed) == ("", False, 3)
    assert result.episodes == 3, "as many as a session sees before it says passed"
    assert "Goes forward" in result.missed
    stored = (Path(result.run) / "attack.json").read_text()
    assert AttackResult.model_validate_json(stored) == result


# --- what a person would object to ----------------------------------------------------------------


@pytest.mark.parametrize(
    "env_id", ["HalfCheetah-v5", "Ant-v5", "Hopper-v5", "Walker2d-v5", "Humanoid-v5", "Reacher-v5"]
)
def test_nothing_is_wrong_with_standing_at_the_start(env_id: str) -> None:
    assert seen(env_id, "stand still") == ()


def test_lying_is_objected_to_unless_it_is_asked_for() -> None:
    on_its_back: dict[str, Any] = {"q1": -0.5, "q2": np.pi}
    text = "; ".join(seen("HalfCheetah-v5", "stand still", **on_its_back))
    assert "lies or sits 100%" in text
    assert "leans over 60 degrees in 1 of 1 episodes" in text
    assert "on the ground: torso" in text
    assert seen("HalfCheetah-v5", "lie on your back", **on_its_back) == ()


def test_trembling_differs_from_a_fast_stride() -> None:
    time = np.arange(STEPS + 1)
    stride = 0.4 * np.sin(2 * np.pi * time / 6)
    assert seen("HalfCheetah-v5", "stand still", q3=stride, q6=stride, q1=0.2) == ()
    tremble: dict[str, Any] = {f"q{joint}": 0.1 * (-1.0) ** time for joint in range(3, 9)}
    assert "trembles" in "; ".join(seen("HalfCheetah-v5", "stand still", **tremble))


def test_a_gait_of_one_leg_is_objected_to() -> None:
    time = np.arange(STEPS + 1)
    swing, way = -0.5 + 0.5 * np.sin(time / 5), time * DT
    assert seen("Walker2d-v5", "walk forward", q0=way, q3=swing, q6=swing[::-1]) == ()
    one = seen("Walker2d-v5", "walk forward", q0=way, q3=swing)
    assert one == ("one side moves 0% as much",)


@pytest.mark.parametrize(
    ("prompt", "speed", "objected"),
    [
        ("run forward", 1.0, False),
        ("run forward", 0.0, True),
        ("run backward", 1.0, True),
        ("walk forward at 2 m/s", 1.0, True),
        ("walk forward at half a metre per second", 0.5, False),
        ("run forward, then stop", 0.0, False),
    ],
)
def test_travel_is_compared_with_the_prompt(prompt: str, speed: float, objected: bool) -> None:
    way = speed * DT * np.arange(STEPS + 1)
    assert bool(seen("HalfCheetah-v5", prompt, q0=way)) == objected


@pytest.mark.parametrize(
    ("prompt", "rate", "objected"),
    [
        ("spin counterclockwise in place", 0.5, False),
        ("turn on the spot to the right", 0.5, True),
        ("spin in place", -0.5, False),
        ("turn left, then right", 0.0, False),
    ],
)
def test_turning_is_compared_with_the_prompt(prompt: str, rate: float, objected: bool) -> None:
    yaw = rate * DT * np.arange(STEPS + 1)
    said = "; ".join(seen("Ant-v5", prompt, q3=np.cos(yaw / 2), q6=np.sin(yaw / 2)))
    assert ("rad/s the asked way" in said) == objected


def test_who_should_stay_and_wanders_is_objected_to() -> None:
    way = 0.4 * DT * np.arange(STEPS + 1)
    assert seen("HalfCheetah-v5", "stand still", q0=way) == ("gets 2.0 m away from its place",)
    assert seen("HalfCheetah-v5", "walk forward, then stand still", q0=way) == ()


def test_who_hops_leaves_the_ground() -> None:
    time = np.arange(STEPS + 1)
    hops, way = np.where(time % 20 > 10, 0.5, -0.08), time * DT
    assert seen("HalfCheetah-v5", "hop forward", q0=way, q1=hops) == ()
    slides = seen("HalfCheetah-v5", "hop forward", q0=way, q1=-0.08)
    assert slides == ("leaves the ground 0.0 times in an episode",)
    assert seen("HalfCheetah-v5", "run forward without hopping", q0=way) == ()
    assert seen("Reacher-v5", "spin around") == ()


def test_a_gait_to_the_left_takes_both_sides() -> None:
    time = np.arange(STEPS + 1)
    swing = 0.3 * np.sin(time / 5)
    limps = seen("Ant-v5", "walk to the left", q1=time * DT, q2=-0.1, q7=swing, q9=swing)
    assert any("one side moves 0% as much" in text for text in limps)


def test_a_foot_that_is_carried_is_objected_to() -> None:
    way = 0.5 * DT * np.arange(STEPS + 1)
    low: dict[str, Any] = {"q0": way, "q2": 0.45}
    legs = {8: 1.2, 10: -1.2, 12: -1.2, 14: 1.2}  # the ankles
    stands = {f"q{joint}": bend for joint, bend in legs.items()}
    carried = {**stands, "q8": 0.2}
    walks, limps = (
        [text for text in seen("Ant-v5", "walk forward", **low, **pose) if "one foot" in text]
        for pose in (stands, carried)
    )
    assert walks == []
    assert limps == ["one foot is on the ground 0% as long as the mean"]
    assert "one foot" not in "; ".join(seen("Ant-v5", "walk on three legs", **low, **carried))


def test_lying_down_is_not_lying_on_its_back() -> None:
    turned: dict[str, Any] = {"q2": 0.3, "q3": 0.0, "q4": 1.0}
    assert "on its back 100% of the time" in seen("Ant-v5", "lie down", **turned)
    assert "on its back" not in "; ".join(seen("Ant-v5", "lie down on your back", **turned))


def test_an_early_end_is_objected_to() -> None:
    assert seen("Hopper-v5", "stand", horizon=2 * STEPS) == ("ends early in 1 of 1 episodes",)
