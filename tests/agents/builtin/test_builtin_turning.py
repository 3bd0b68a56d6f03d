"""Turning on the spot: what is paid, and on what it costs to leave."""

from __future__ import annotations

from typing import Any

import numpy as np

from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.builtin.quantities import quantities_of
from p2p.agents.builtin.reward import Recipe, Term, read_recipe, write_reward
from p2p.agents.requests import IntentRequest, RewardRequest

ANT = "Ant-v5"


def reward_code(prompt: str) -> str:
    criteria = write_criteria(IntentRequest(prompt=prompt, env_id=ANT)).criteria
    return write_reward(RewardRequest(prompt=prompt, env_id=ANT, criteria=criteria)).code


def recipe(prompt: str) -> Recipe:
    found = read_recipe(reward_code(prompt))
    assert found is not None
    return found


def only(prompt: str, quantity: str) -> Term:
    (found,) = (t for t in recipe(prompt).terms if t.quantity == quantity)
    return found


def paid_for_turning(prompt: str, rates: list[float]) -> list[float]:
    """What the whole reward gives to a standing ant that turns at these rates."""
    names: dict[str, Any] = {}
    exec(reward_code(prompt), names)  # noqa: S102 - our own text
    obs = np.zeros((len(rates), 105))
    obs[:, 0], obs[:, 1], obs[:, 18] = 0.5, 1.0, rates
    still = np.zeros(len(rates))
    info = {"x_velocity": still, "y_velocity": still, "distance_from_origin": still}
    total, _ = names["reward_fn"](obs, np.zeros((len(rates), 8)), obs, info)
    return [float(one) for one in total]


def test_turning_pays_up_to_enough_and_costs_beyond() -> None:
    backward, still, asked, enough, hasty, mad = paid_for_turning(
        "spin in place", [-0.4, 0.0, 1.0, 1.5, 2.5, 3.4]
    )
    assert backward < still < asked < enough
    assert enough > hasty > mad


def test_clockwise_pays_the_other_way_round() -> None:
    one_way = paid_for_turning("spin in place", [-1.0, 0.0, 1.0, 2.0])
    other = paid_for_turning("spin in place clockwise", [1.0, 0.0, -1.0, -2.0])
    assert one_way == other


def test_leaving_costs_where_the_policy_notices_it() -> None:
    assert quantities_of(ANT)["drift"].felt_as == "ground_speed"
    assert all(term.quantity != "drift" for term in recipe("spin in place").terms)
    assert {"stays_in_place", "does_not_travel"} == set(
        only("spin in place", "ground_speed").criteria
    )


def test_in_place_said_aloud_counts_more_than_in_place_understood() -> None:
    said, understood = (only(p, "ground_speed").weight for p in ("spin in place", "spin"))
    assert said > 2 * understood


def test_a_cost_that_is_felt_through_a_heavier_one_stays_what_it_is() -> None:
    standing = recipe("stand still").terms
    weights = {term.quantity: term.weight for term in standing}
    assert weights["ground_speed"] > weights["drift"] > 0


def test_a_body_that_trembles_in_time_with_the_steps_has_not_flipped() -> None:
    cheetah = quantities_of("HalfCheetah-v5")["flip_back_rate"]
    angle = np.zeros(100)
    angle[40:60] = np.linspace(0.0, -2 * np.pi, 20)  # once around, nose up
    angle[60:] = -2 * np.pi
    trajectory = {"qpos": np.zeros((100, 9)), "qvel": np.full((100, 9), -3.0)}
    trajectory["qpos"][:, 2] = angle
    rate = eval(str(cheetah.judge_code(["qpos"])), {"np": np, "trajectory": trajectory})  # noqa: S307 - our own text
    assert np.sum(rate) * 0.05 / (2 * np.pi) == 1.0
    before, after = np.zeros((2, 17)), np.full((2, 17), -3.0)
    after[:, 1] = [0.0, -0.2]
    names = {"obs": before, "next_obs": after}
    assert eval(str(cheetah.reward_code()), names).tolist() == [0.0, 4.0]  # noqa: S307 - our own text
