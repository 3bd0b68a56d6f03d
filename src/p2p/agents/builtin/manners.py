"""How a motion is done: what each quality asks for."""

from __future__ import annotations

from p2p.agents.builtin.grammar import Goal
from p2p.agents.builtin.measures import Measure
from p2p.agents.builtin.sheet import Sheet


def low(sheet: Sheet, _: Goal) -> None:
    """Keep the root low."""
    if not sheet.has("height"):
        sheet.cannot.append("keep low")
        return
    height = sheet.body.standing_height
    low = sheet.body.allowed_height(0.85 * height)
    sheet.add("Keeps low", sheet.at("share", "height", high=low), "at_least", 0.8,
              category="task", weight=0.7)  # fmt: skip


def high(sheet: Sheet, _: Goal) -> None:
    """Keep the root high."""
    if sheet.has("height") and not any("height" in c.measure for c in sheet.found):
        sheet.add("Keeps high", sheet.at("mean", "height"), "at_least",
                  1.0 * sheet.body.standing_height, category="task", weight=0.7)  # fmt: skip


def not_fallen(sheet: Sheet) -> None:
    """Not at the ground."""
    if sheet.has("height") and not sheet.body.starts_lying:
        high = sheet.at("share", "height", low=0.6 * sheet.body.standing_height)
        sheet.add("Does not sink down", high, "at_least", 0.9, category="posture", weight=0.25)


def calm(sheet: Sheet) -> None:
    """Little going on in the joints."""
    if sheet.has("joint_speed"):
        sheet.add("Moves its joints little", sheet.at("mean", "joint_speed"), "at_most", 1.5,
                  category="dynamics", weight=0.15)  # fmt: skip


def upright(sheet: Sheet, _: Goal, *, task: bool = True, limit: float = 0.6) -> None:
    """Keep the root, or the pole, upright."""
    if sheet.has("tilt"):
        sheet.add("Stays upright", sheet.at("share", "tilt", high=limit), "at_least", 0.9,
                  category="task" if task else "posture", weight=0.5 if task else 0.3)  # fmt: skip
    elif sheet.has("pole_tilt"):
        sheet.add("Keeps the pole up", sheet.at("share", "pole_tilt", high=0.2), "at_least", 0.9,
                  category="task", weight=1.0)  # fmt: skip


def on_back(sheet: Sheet, _: Goal) -> None:
    """Upside down."""
    if not sheet.has("tilt"):
        sheet.cannot.append("turn over")
        return
    sheet.add("Is on its back", sheet.at("share", "tilt", low=2.2), "at_least", 0.7,
              category="task", weight=1.0)  # fmt: skip


def level(sheet: Sheet, goal: Goal) -> None:
    """As upright, with less tolerance."""
    upright(sheet, goal, limit=0.35)


def in_place(sheet: Sheet, _: Goal, *, task: bool = True) -> None:
    """Not travel: a body that works hard sways, so where it is counts more than how it moves."""
    sheet.add("Stays in place", sheet.at("mean", "drift"), "at_most", sheet.body.length,
              category="task" if task else "stability", weight=1.0 if task else 0.4)  # fmt: skip
    sheet.add("Does not travel", sheet.at("mean", "ground_speed"), "at_most",
              0.15 * sheet.body.pace, category="stability", weight=0.2)  # fmt: skip


def smooth(sheet: Sheet, _: Goal) -> None:
    """No sudden changes of the actions."""
    sheet.add("Moves smoothly", sheet.at("mean", "action_change"), "at_most", 0.2,
              category="dynamics", weight=0.4)  # fmt: skip


def quiet(sheet: Sheet, goal: Goal) -> None:
    """Smooth, with slow joints."""
    smooth(sheet, goal)
    if sheet.has("joint_speed"):
        sheet.add("Moves its joints calmly", sheet.at("mean", "joint_speed"), "at_most", 4.0,
                  category="dynamics", weight=0.4)  # fmt: skip


def efficient(sheet: Sheet, _: Goal) -> None:
    """With little effort."""
    sheet.add("Spends little effort", sheet.at("mean", "effort"), "at_most", 0.25,
              category="efficiency", weight=0.4)  # fmt: skip


def straight(sheet: Sheet, _: Goal) -> None:
    """Without drifting sideways."""
    sheet.add("Keeps its line", sheet.at("miss", "left_speed", low=0.0), "at_most",
              0.05 * sheet.body.pace, category="gait", weight=0.4)  # fmt: skip


def stable(sheet: Sheet, goal: Goal) -> None:
    """Last, and stay upright."""
    lasts(sheet, weight=0.5)
    upright(sheet, goal, task=False)


def symmetric(sheet: Sheet, _: Goal) -> None:
    """Left as right."""
    if not sheet.has("asymmetry"):
        sheet.cannot.append("tell left from right")
        return
    sheet.add("Moves left and right alike", sheet.at("mean", "asymmetry"), "at_most", 0.4,
              category="gait", weight=0.4)  # fmt: skip


def lasts(sheet: Sheet, weight: float = 0.3) -> None:
    """Not end the episode early."""
    if sheet.body.may_end_early:
        sheet.add("Does not end early", Measure("lasting"), "at_least", 0.95,
                  category="stability", weight=weight)  # fmt: skip
