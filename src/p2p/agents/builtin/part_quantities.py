"""Of a body's parts: poles, hands and targets, limbs, actuators."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from p2p.agents.builtin import limbs
from p2p.agents.builtin.body import OBJECTS, TARGETS, Body
from p2p.agents.builtin.quantity import Quantity

if TYPE_CHECKING:
    from p2p.training.specs.records import BodyEntry, JointEntry


def poles(body: Body) -> list[Quantity]:
    """Of poles on a cart."""
    if not body.poles or body.cart is None:
        return []
    found: list[Quantity] = []
    angle = ""
    cosines: list[tuple[str, str]] = []
    complete = True
    for joint in body.poles:
        column = f'trajectory["qpos"][:, {joint.qpos_address}]'
        angle = f"{angle} + {column}" if angle else column
        parts = _sine_cosine(body, joint)
        complete = complete and parts is not None
        if parts is not None:
            cosines.append(_sum_of_angles(cosines[-1], parts) if cosines else parts)
    reward = f"np.arccos(np.clip({cosines[-1][1]}, -1.0, 1.0))" if complete else None
    first = body.poles[0]
    if len(body.poles) == 1 and (seen := body.seen(f"qpos[{first.qpos_address}]")):
        reward = f"np.abs({seen})"
    found.append(Quantity("pole_tilt", "lean of the uppermost pole", "rad", reward,
                          f"np.abs({angle})", r"\|\theta\|"))  # fmt: skip
    cart = body.cart
    offset, speed = body.seen(f"qpos[{cart.qpos_address}]"), body.seen(f"qvel[{cart.qvel_address}]")
    found += [
        Quantity("cart_offset", "distance of the cart from the middle", "m",
                 offset and f"np.abs({offset})",
                 f'np.abs(trajectory["qpos"][:, {cart.qpos_address}])', r"\|x\|"),
        Quantity("cart_speed", "speed of the cart", "m/s", speed and f"np.abs({speed})",
                 f'np.abs(trajectory["qvel"][:, {cart.qvel_address}])', r"\|v\|"),
    ]  # fmt: skip
    return found


def _sine_cosine(body: Body, joint: JointEntry) -> tuple[str, str] | None:
    source = f"qpos[{joint.qpos_address}]"
    if angle := body.seen(source):
        return f"np.sin({angle})", f"np.cos({angle})"
    sine, cosine = body.seen(f"sin({source})"), body.seen(f"cos({source})")
    return (sine, cosine) if sine and cosine else None


def _sum_of_angles(a: tuple[str, str], b: tuple[str, str]) -> tuple[str, str]:
    (sin_a, cos_a), (sin_b, cos_b) = a, b
    return (
        f"({sin_a} * {cos_b} + {cos_a} * {sin_b})",
        f"({cos_a} * {cos_b} - {sin_a} * {sin_b})",
    )


def targets(body: Body) -> list[Quantity]:
    """Of what is to be reached or pushed."""
    goal, thing = body.find(TARGETS), body.find(OBJECTS)
    driven = {joint.body for joint in body.drives}
    moved = [
        b
        for b in body.spec.bodies[1:]
        if any(other.name in driven for other in body.spec.bodies[1:] if b in body.below(other))
    ]
    hand = moved[-1] if moved else None
    if goal is None or hand is None or goal in moved:
        return []
    if thing is None:
        return [_gap(body, "target_distance", f"distance of the {hand.name} from the {goal.name}",
                     hand, goal)]  # fmt: skip
    return [
        _gap(body, "target_distance", f"distance of the {thing.name} from the {goal.name}",
             thing, goal),
        _gap(body, "hand_distance", f"distance of the {hand.name} from the {thing.name}",
             hand, thing),
    ]  # fmt: skip


def _gap(body: Body, key: str, words: str, a: BodyEntry, b: BodyEntry) -> Quantity:
    parts: list[str] = []
    for k in range(3):
        first, second = f"xpos[{a.id}, {k}]", f"xpos[{b.id}, {k}]"
        one, two = body.seen(first), body.seen(second)
        if difference := body.seen(f"{first} - {second}") or body.seen(f"{second} - {first}"):
            parts.append(difference)
        elif one and two:
            parts.append(f"({one} - {two})")
    squares = " + ".join(f"{part} ** 2" for part in parts)
    judge = (
        f'np.linalg.norm(trajectory["xpos"][:, {a.id}] - trajectory["xpos"][:, {b.id}], axis=-1)'
    )
    reward = f"np.sqrt({squares})" if parts else None
    return Quantity(key, words, "m", reward, judge, "d", span=body.length)


def limb_heights(body: Body) -> list[Quantity]:
    """Of the limbs, and of left against right."""
    if body.root is None or not body.has_weight:
        return []
    found: list[Quantity] = []
    for part in body.below(body.root)[1:]:
        if not limbs.chain(body, part):
            continue
        words = f"height of the {part.name.replace('_', ' ')} over the {body.root.name}"
        found.append(
            Quantity(
                rise_key(part), words, "m", limbs.rewarded_rise(body, part),
                limbs.judged_rise(body, part), rf"h_\mathrm{{{part.name.replace('_', '')}}}",
                signed=True, stretch=limbs.limb_length(body, part),
            )
        )  # fmt: skip
    if pairs := _mirrored(body):
        seen = [(body.seen(f"qpos[{a.qpos_address}]"), body.seen(f"qpos[{b.qpos_address}]"))
                for a, b, _ in pairs]  # fmt: skip
        gaps = [f"np.abs({one} {'-' if sign > 0 else '+'} {two})"
                for (one, two), (_, _, sign) in zip(seen, pairs, strict=True)]  # fmt: skip
        column = 'trajectory["qpos"][:, {}]'
        judged = [f"np.abs({column.format(a.qpos_address)} {'-' if sign > 0 else '+'} "
                  f"{column.format(b.qpos_address)})" for a, b, sign in pairs]  # fmt: skip
        complete = all(one and two for one, two in seen)
        found.append(
            Quantity("asymmetry", "difference between the left and the right joints", "rad",
                     f"({' + '.join(gaps)}) / {len(gaps)}" if complete else None,
                     f"({' + '.join(judged)}) / {len(judged)}", r"\|q_l - q_r\|")
        )  # fmt: skip
    return found


def rise_key(part: BodyEntry) -> str:
    """The key of how high a part is."""
    return "rise_" + re.sub(r"\W", "_", part.name.lower())[:34]


def _mirrored(body: Body) -> list[tuple[JointEntry, JointEntry, int]]:
    """Pairs of left and right joints; -1 where a mirror image turns the other way."""
    by_name = {joint.name: joint for joint in body.drives if joint.type == "hinge"}
    found: list[tuple[JointEntry, JointEntry, int]] = []
    for name, left in by_name.items():
        twins = [
            name.replace("left", "right"),
            name.replace("_left", ""),
            name.replace("left_", ""),
        ]
        twin = next((by_name[t] for t in twins if t != name and t in by_name), None)
        if "left" not in name or twin is None:
            continue
        a, b = left.range, twin.range
        flipped = a and b and np.allclose(a, (-b[1], -b[0])) and not np.allclose(a, b)
        found.append((left, twin, -1 if flipped else 1))
    return found


def effort(body: Body) -> list[Quantity]:
    """Of the actuators."""
    highs = [max(abs(a.high or 1.0), abs(a.low or 1.0)) for a in body.spec.actions]
    same = len(set(highs)) == 1
    scale = f"{highs[0]:g}" if same else f"np.array({[round(h, 6) for h in highs]})"
    part = "action" if same and highs[0] == 1.0 else f"action / {scale}"
    whole = part.replace("action", 'trajectory["action"]')
    found = [
        Quantity("effort", "effort (mean square of the actions, as a share of the strongest)", "",
                 f"np.mean(np.square({part}), axis=-1)", f"np.mean(np.square({whole}), axis=-1)",
                 r"\overline{a^2}"),
        Quantity("action_change", "change of the actions from step to step, as a share of their "
                 "range", "", None,
                 f"np.mean(np.abs(np.diff({whole}, axis=0, prepend=({whole})[:1])), axis=-1) / 2",
                 r"\|\Delta a\|"),
    ]  # fmt: skip
    hinges = [j for j in body.drives if j.type == "hinge"]
    seen = [body.seen(f"qvel[{j.qvel_address}]") for j in hinges]
    if hinges:
        indices = [int(re.findall(r"\d+", s)[0]) for s in seen if s]
        reward = f"np.sqrt(np.mean(np.square(next_obs[..., {indices}]), axis=-1))"
        columns = [j.qvel_address for j in hinges]
        judge = f'np.sqrt(np.mean(np.square(trajectory["qvel"][:, {columns}]), axis=-1))'
        found.append(Quantity("joint_speed", "speed of the joints (root mean square)", "rad/s",
                              reward if all(seen) else None, judge, r"\|\dot q\|"))  # fmt: skip
    return found
