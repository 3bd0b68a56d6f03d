"""What each motion asks for on a body: which numbers, from where on, and what they count."""

from __future__ import annotations

from p2p.agents.builtin.body import Body
from p2p.agents.builtin.grammar import Goal
from p2p.agents.builtin.limbs import find_limb, limb_length
from p2p.agents.builtin.manners import calm, high, in_place, low, not_fallen, upright
from p2p.agents.builtin.measures import Measure
from p2p.agents.builtin.quantities import rise_key
from p2p.agents.builtin.sheet import Sheet

PACES = {"slow": 0.1, "walk": 0.25, "run": 0.55, "fast": 1.2}
"""Speeds in units of the body's pace."""

TURN_RATES = {"slow": 0.3, "walk": 0.6, "run": 1.0, "fast": 2.0}
"""In rad/s."""

_WAYS = {
    "": ("forward_speed", "Goes forward"),
    "forward": ("forward_speed", "Goes forward"),
    "up": ("forward_speed", "Goes forward"),
    "down": ("forward_speed", "Goes forward"),
    "backward": ("backward_speed", "Goes backward"),
    "left": ("left_speed", "Goes to the left"),
    "right": ("right_speed", "Goes to the right"),
}


def _speed(goal: Goal, usual: str, body: Body) -> float:
    level = {"fast": "fast", "slow": "slow", "medium": "walk"}.get(goal.speed, usual)
    return PACES[level] * body.pace


def go(sheet: Sheet, goal: Goal, usual: str = "walk") -> None:
    """Travel one way, as fast as is said."""
    quantity, title = _WAYS.get(goal.direction, _WAYS[""])
    if sheet.turning and not goal.direction:
        quantity, title = "ground_speed", "Keeps moving"
    if not sheet.has(quantity):
        sheet.cannot.append(f"go {goal.direction or 'forward'}")
        return
    stated = goal.amount if goal.amount and goal.amount.unit == "m/s" else None
    wanted = stated.value if stated else _speed(goal, usual, sheet.body)
    if stated or goal.speed == "slow":
        sheet.add(
            f"{title} at the speed asked for",
            sheet.at("miss", quantity, low=wanted),
            "at_most",
            wanted * (0.15 if stated else 0.5),
            category="task",
            weight=1.0,
        )
    else:
        sheet.add(title, sheet.at("mean", quantity), "at_least", wanted,
                  category="task", weight=1.0)  # fmt: skip
    sheet.add("Keeps going", sheet.at("share", quantity, low=0.25 * wanted), "at_least", 0.75,
              category="gait", weight=0.2)  # fmt: skip
    if sheet.has("left_speed") and quantity in ("forward_speed", "backward_speed"):
        limit = max(0.5 * wanted, 0.08 * sheet.body.pace)
        sheet.add("Keeps its line", sheet.at("miss", "left_speed", low=0.0), "at_most", limit,
                  category="gait", weight=0.15)  # fmt: skip


def run(sheet: Sheet, goal: Goal) -> None:
    """Travel faster."""
    go(sheet, goal, "run")


def crawl(sheet: Sheet, goal: Goal) -> None:
    """Travel low."""
    go(sheet, goal, "walk")
    low(sheet, goal)


def stand(sheet: Sheet, goal: Goal) -> None:
    """Stay, upright; a pole is balanced, a body that lies gets up."""
    body = sheet.body
    if body.poles:
        balance(sheet, goal)
        return
    if body.starts_lying and goal.motion != "lie":
        get_up(sheet, goal)
        return
    if not sheet.has("ground_speed"):
        sheet.add("Holds still", sheet.at("mean", "joint_speed"), "at_most", 0.3,
                  category="task", weight=1.0)  # fmt: skip
    else:
        sheet.add("Stays where it is", sheet.at("mean", "ground_speed"), "at_most",
                  0.06 * body.pace, category="task", weight=1.0)  # fmt: skip
        sheet.add("Ends near where it began", sheet.at("final", "drift"), "at_most",
                  0.5 * body.length, category="stability", weight=0.2)  # fmt: skip
    upright(sheet, goal, task=True)
    not_fallen(sheet)
    calm(sheet)


def balance(sheet: Sheet, goal: Goal) -> None:
    """Keep a pole up; a body without one stands."""
    if not sheet.body.poles:
        stand(sheet, goal)
        return
    lasting = Measure("lasting")
    if sheet.body.may_end_early:
        sheet.add("Keeps the pole up to the end", lasting, "at_least", 0.95,
                  category="task", weight=1.0)  # fmt: skip
    sheet.add("Keeps the pole upright", sheet.at("share", "pole_tilt", high=0.15), "at_least", 0.9,
              category="task", weight=0.7)  # fmt: skip
    sheet.add("Holds it without swaying", sheet.at("mean", "pole_tilt"), "at_most", 0.1,
              category="posture", weight=0.3)  # fmt: skip
    sheet.add("Keeps the cart near the middle", sheet.at("mean", "cart_offset"), "at_most", 0.5,
              category="stability", weight=0.2)  # fmt: skip
    sheet.add("Moves the cart calmly", sheet.at("mean", "cart_speed"), "at_most", 0.5,
              category="dynamics", weight=0.15)  # fmt: skip


def _rotating(sheet: Sheet, goal: Goal, usual: str) -> None:
    right = goal.direction in ("clockwise", "right")
    quantity = "turn_right_rate" if right else "turn_left_rate"
    if not sheet.has(quantity):
        sheet.cannot.append("turn about the vertical")
        return
    level = {"fast": "fast", "slow": "slow", "medium": "walk"}.get(goal.speed, usual)
    stated = goal.amount if goal.amount and goal.amount.unit == "rad/s" else None
    rate = stated.value if stated else TURN_RATES[level]
    title = "Turns clockwise" if right else "Turns counterclockwise"
    if stated:
        sheet.add(f"{title} at the rate asked for", sheet.at("miss", quantity, low=rate), "at_most",
                  0.15 * rate, category="task", weight=1.0)  # fmt: skip
    else:
        sheet.add(title, sheet.at("mean", quantity), "at_least", rate,
                  category="task", weight=1.0)  # fmt: skip
    sheet.add("Keeps turning", sheet.at("share", quantity, low=0.25 * rate), "at_least", 0.75,
              category="gait", weight=0.2)  # fmt: skip


def spin(sheet: Sheet, goal: Goal) -> None:
    """Turn fast, in place."""
    _rotating(sheet, goal, "run")
    in_place(sheet, goal, task=False)


def turn(sheet: Sheet, goal: Goal) -> None:
    """Turn."""
    _rotating(sheet, goal, "walk")


def _tumbling(sheet: Sheet, goal: Goal, plus: str, minus: str, title: str) -> None:
    back = goal.direction in ("backward", "left", "counterclockwise")
    quantity = minus if back else plus
    if not sheet.has(quantity):
        sheet.cannot.append(title.lower())
        return
    sheet.add(title, sheet.at("turns", quantity), "at_least", 1.0, category="task", weight=1.0)
    sheet.add(f"{title} again and again", sheet.at("mean", quantity), "at_least", 0.5,
              category="gait", weight=0.2)  # fmt: skip


def flip(sheet: Sheet, goal: Goal) -> None:
    """Turn over about the transverse axis."""
    _tumbling(sheet, goal, "flip_forward_rate", "flip_back_rate", "Flips over")


def roll(sheet: Sheet, goal: Goal) -> None:
    """Turn over about the long axis, where the body has one."""
    if sheet.has("roll_right_rate"):
        _tumbling(sheet, goal, "roll_right_rate", "roll_left_rate", "Rolls over")
    else:
        _tumbling(sheet, goal, "flip_forward_rate", "flip_back_rate", "Rolls over")


def jump(sheet: Sheet, goal: Goal) -> None:
    """Get high up."""
    if not sheet.has("height"):
        sheet.cannot.append("jump")
        return
    height = sheet.body.standing_height
    stated = goal.amount.value if goal.amount and goal.amount.unit == "m" else None
    rise = stated or max(0.15 * height, 0.1 * sheet.body.length)
    top = sheet.body.allowed_height(height + rise)
    sheet.add("Jumps up", sheet.at("highest", "height"), "at_least", top,
              category="task", weight=1.0)  # fmt: skip
    _bouncing(sheet)
    if goal.direction in ("forward", "backward", "left", "right"):
        go(sheet, goal)


def hop(sheet: Sheet, goal: Goal) -> None:
    """Travel in bounces; without a direction, jump."""
    if goal.direction not in ("up", "down", "") or not sheet.has("height"):
        go(sheet, goal)
        _bouncing(sheet)
    else:
        jump(sheet, goal)


def _bouncing(sheet: Sheet) -> None:
    sheet.add("Goes up and down", sheet.at("mean", "bounce"), "at_least", 0.06 * sheet.body.pace,
              category="gait", weight=0.3)  # fmt: skip


def crouch(sheet: Sheet, goal: Goal) -> None:
    """Stay at half height."""
    if not sheet.has("height"):
        sheet.cannot.append("crouch")
        return
    height = sheet.body.standing_height
    low, high = (sheet.body.allowed_height(share * height) for share in (0.35, 0.85))
    sheet.add("Crouches", sheet.at("share", "height", low=low, high=high),
              "at_least", 0.7, category="task", weight=1.0)  # fmt: skip
    sheet.add("Stays where it is", sheet.at("mean", "ground_speed"), "at_most",
              0.08 * sheet.body.pace, category="stability", weight=0.3)  # fmt: skip
    upright(sheet, goal, task=False, limit=0.8)
    calm(sheet)


def lie(sheet: Sheet, _: Goal) -> None:
    """End up at the ground."""
    if not sheet.has("height"):
        sheet.cannot.append("lie down")
        return
    height = sheet.body.standing_height
    low = sheet.body.allowed_height(0.55 * height)
    sheet.add("Lies on the ground", sheet.at("final", "height"), "at_most", low,
              category="task", weight=1.0)  # fmt: skip
    sheet.add("Lies still", sheet.at("mean", "ground_speed"), "at_most", 0.08 * sheet.body.pace,
              category="stability", weight=0.3)  # fmt: skip
    calm(sheet)


def get_up(sheet: Sheet, goal: Goal) -> None:
    """Rise from lying; a body that stands already stands."""
    body = sheet.body
    if not sheet.has("height"):
        sheet.cannot.append("get up")
        return
    if not body.starts_lying:
        stand(sheet, goal)
        return
    start, full = body.start_height, body.standing_height
    clear = start + 0.3 * (full - start)
    sheet.add("Gets clearly off the ground", sheet.at("highest", "height"), "at_least", clear,
              category="task", weight=0.6)  # fmt: skip
    sheet.add("Is up at the end", sheet.at("final", "height"), "at_least", 0.9 * clear,
              category="task", weight=1.0)  # fmt: skip
    sheet.add("Stays up", sheet.at("share", "height", low=0.75 * clear), "at_least", 0.6,
              category="stability", weight=0.3)  # fmt: skip
    sheet.add("Stands at full height", sheet.at("share", "height", low=0.85 * full), "at_least",
              0.3, category="posture", weight=0.1)  # fmt: skip
    sheet.add("Holds its trunk upright", sheet.at("share", "tilt", high=0.9), "at_least", 0.5,
              category="posture", weight=0.15)  # fmt: skip


def reach(sheet: Sheet, goal: Goal) -> None:
    """Bring the hand, or the object, to the target."""
    if not sheet.has("target_distance"):
        if sheet.has("forward_speed"):
            go(sheet, goal)
        else:
            sheet.cannot.append("reach a target")
        return
    near = 0.1 * sheet.body.length
    if sheet.has("hand_distance"):
        near = 0.12 * sheet.body.length
        sheet.add("Brings the object to the goal", sheet.at("final", "target_distance"), "at_most",
                  near, category="task", weight=1.0)  # fmt: skip
        sheet.add("Stays at the object", sheet.at("mean", "hand_distance"), "at_most", 2 * near,
                  category="gait", weight=0.3)  # fmt: skip
    else:
        sheet.add("Reaches the target", sheet.at("final", "target_distance"), "at_most", near,
                  category="task", weight=1.0)  # fmt: skip
        sheet.add("Stays at the target", sheet.at("share", "target_distance", high=1.5 * near),
                  "at_least", 0.5, category="stability", weight=0.4)  # fmt: skip
    sheet.add("Is close on average", sheet.at("mean", "target_distance"), "at_most", 3 * near,
              category="gait", weight=0.2)  # fmt: skip


def raise_or_lower(sheet: Sheet, goal: Goal) -> None:
    """Hold a limb higher or lower than usual."""
    part = find_limb(sheet.body, goal.limb)
    if part is None or not sheet.has(rise_key(part)):
        if goal.motion == "lower" and (not goal.limb or goal.limb[-1] == "torso"):
            low(sheet, goal)
        elif goal.limb and goal.limb[-1] == "torso":
            high(sheet, goal)
        else:
            sheet.cannot.append(f"{goal.motion} the {' '.join(goal.limb) or 'limb'}")
        return
    usual, length = sheet.body.usual_rise(part), limb_length(sheet.body, part)
    up = goal.motion == "raise"
    wanted = usual + (0.3 if up else -0.3) * length
    said = " ".join(goal.limb)
    title, better = (f"Raises the {said}", "at_least") if up else (f"Lowers the {said}", "at_most")
    sheet.add(title, sheet.at("mean", rise_key(part)), better, wanted, category="task", weight=1.0)
    not_fallen(sheet)
