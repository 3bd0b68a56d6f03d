"""What can be measured of a body, step by step: one table for criteria, rewards and judges.

Each quantity has its name in words, its unit, and its code: for a reward, over `action`,
`next_obs` and `info`; for a judge, over the columns of a trajectory, from the simulator's own state
where that is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from p2p.agents.builtin.body import body_of
from p2p.agents.builtin.part_quantities import effort, limb_heights, poles, rise_key, targets
from p2p.agents.builtin.quantity import Quantity, judge_code, reward_code
from p2p.agents.builtin.root_quantities import posture, rotation, travel

__all__ = ["Quantity", "judge_code", "quantities_of", "reward_code", "rise_key"]


@cache
def quantities_of(env_id: str) -> Mapping[str, Quantity]:
    """Every quantity of this environment's body, by key."""
    body = body_of(env_id)
    found: list[Quantity] = [*travel(body), *posture(body), *rotation(body), *poles(body)]
    found += [*targets(body), *limb_heights(body), *effort(body)]
    return {quantity.key: quantity for quantity in found}
