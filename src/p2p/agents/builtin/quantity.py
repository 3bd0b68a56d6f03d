"""One number per step, and its code for rewards and for judges."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number per step."""

    key: str
    words: str
    """As it stands in a criterion's measure; unique."""
    unit: str
    reward: str | None
    """Code over obs, action, next_obs and info; None: no reward can see it."""
    judge: str
    """Code over `trajectory` (and `np`); may also use what a reward uses."""
    symbol: str = "x"
    """In LaTeX."""
    signed: bool = False
    """Whether less than nothing has a meaning: the other way."""
    span: float | None = None
    """For distances to reach: how far away it may begin."""
    headroom: float = 1.6
    """How many times its target still pays more; enough for what swings within a stride."""
    enough: float | None = None
    """How many times its target is best of all; None: the more the better."""
    stretch: float | None = None
    """For a limb's height, which has no natural zero: how long the limb is."""
    ceiling: tuple[float, float] | None = None
    """From where on it is much, and above which the environment ends the episode."""
    felt_as: str = ""
    """The quantity through which a policy notices it, where it does not observe it itself."""


def needed_columns(code: str) -> set[str]:
    """The columns of a trajectory that a judge's code reads."""
    return set(re.findall(r'trajectory\["(\w+)"\]', code))


def judge_code(quantity: Quantity, columns: Collection[str]) -> str | None:
    """Its code for a judge that has these columns; None: it cannot be measured there."""
    if needed_columns(quantity.judge) <= set(columns):
        return quantity.judge
    if quantity.reward is None:
        return None
    code = quantity.reward.replace('info["', 'trajectory["')
    code = re.sub(r"\b(next_obs|obs|action)\b", r'trajectory["\1"]', code)
    return code if needed_columns(code) <= set(columns) else None


def reward_code(quantity: Quantity, *, side_info: bool = False) -> str | None:
    """Its code for a reward; with side information, from the simulator's state if need be."""
    if quantity.reward is not None or not side_info:
        return quantity.reward
    if not needed_columns(quantity.judge) <= {"qpos", "qvel", "xpos", "xquat", "action"}:
        return None
    if "[:1]" in quantity.judge:  # it looks back at where the episode began
        return None
    code = re.sub(r'trajectory\["action"\]', "action", quantity.judge)
    return re.sub(r'trajectory\["(\w+)"\]\[:,', r'info["mj_data"].\1[...,', code)


def minus(sign: float) -> str:
    """The sign as code."""
    return "-" if sign < 0 else ""


def signed(sign: float, code: str | None) -> str | None:
    """Code with its sign; None stays None."""
    return code and f"{minus(sign)}{code}"
