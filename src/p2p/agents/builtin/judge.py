"""Criteria as a judge: source text of `judge_fn(trajectory, summary)` with partial credit."""

from __future__ import annotations

from p2p.agents.builtin.body import Body, body_of
from p2p.agents.builtin.measures import Measure
from p2p.agents.builtin.quantities import judge_code, quantities_of, rise_key
from p2p.agents.builtin.reward import in_a_docstring, understood
from p2p.agents.requests import CodeDraft, JudgeRequest
from p2p.contracts import Criterion
from p2p.training.specs.records import BodyEntry

TAGS = {
    "effort": "wasteful",
    "action_change": "jerky",
    "joint_speed": "jerky",
    "tilt": "fell",
    "pole_tilt": "fell",
    "height": "wrong_posture",
    "bounce": "too_slow",
    "ground_speed": "drifts",
    "drift": "drifts",
    "cart_offset": "drifts",
    "cart_speed": "unstable",
    "target_distance": "not_reached",
    "hand_distance": "not_reached",
    "asymmetry": "asymmetric",
}
"""What it says of an episode that a criterion on this quantity is not met."""

_HEAD = '''"""Judge: {prompt}"""

import numpy as np

HORIZON = {horizon}
CRITERIA = (
    # id, statistic, better, threshold, no credit at, low, high, first, last, tag
{rows}
)
UNKNOWN = {unknown}


def measured(trajectory):
    """The quantity of each criterion, step by step."""
    steps = len(trajectory["step"])
    return {{
{measured}
    }}

'''

_BODY = '''
def credit(value, better, threshold, zero):
    """1 from the threshold on, 0 at `zero`, linear in between."""
    if better == "at_least":
        return float(np.clip((value - zero) / (threshold - zero), 0.0, 1.0))
    return float(np.clip((zero - value) / (zero - threshold), 0.0, 1.0))


def judge_fn(trajectory, summary):
    """Score every criterion. What an episode that ends early leaves undone counts as not done."""
    step = np.asarray(trajectory["step"], dtype=float)
    horizon = float(summary.get("max_episode_steps") or HORIZON)
    lived = (step[-1] + 1.0) / horizon
    dt = float(summary.get("dt") or 0.0)
    series = measured(trajectory)
    results, tags, failed = {}, [], []
    for name, stat, better, threshold, zero, low, high, first, last, tag in CRITERIA:
        values = np.asarray(series[name], dtype=float)
        inside = (step >= first * horizon) & (step < last * horizon)
        done = float(np.clip((lived - first) / (last - first), 0.0, 1.0))
        seen = values[inside]
        signed, earned = None, None
        if stat == "lasting":
            value = min(1.0, lived)
            score = credit(value, better, threshold, zero)
        elif not len(seen):
            value, score = None, 0.0
        elif stat == "share":
            good = np.ones(len(seen), dtype=bool)
            if low is not None:
                good &= seen >= low
            if high is not None:
                good &= seen <= high
            value = float(np.mean(good)) * done
            score = credit(value, better, threshold, zero)
        elif stat == "highest":
            value = float(np.max(seen))
            score = credit(value, better, threshold, zero)
        elif stat == "turns":
            value = float(np.sum(seen)) * dt / (2.0 * np.pi)
            score = credit(value, better, threshold, zero)
        elif stat == "miss":
            signed = float(np.mean(seen)) * (done if low else 1.0)
            value = abs(signed - low)
            earned = credit(value, better, threshold, zero)
            score = earned if low else earned * done
        elif stat == "final":
            value = float(np.mean(seen[-max(1, len(seen) // 5):]))
            earned = credit(value, better, threshold, zero)
            reached = tag == "not_reached" and earned >= 1.0
            score = earned if reached else earned * done
        else:
            value = float(np.mean(seen))
            earned = credit(value, better, threshold, zero)
            score = earned * done
        evidence = "not seen: the episode ended before" if value is None else (
            "%s %.3g, wanted %s %.3g" % (stat, value, better.replace("_", " "), threshold))
        if done < 0.99 and stat != "lasting":
            evidence += "; only %.0f %% of the time was used" % (100 * done)
        results[name] = {"score": score, "value": value, "evidence": evidence}
        if score < 0.8:
            failed.append((score, name, evidence))
        if (score if earned is None else earned) < 0.8:
            if signed is None or tag != "speed":
                tags.append(tag_for(tag, value, threshold, better))
            else:
                tags.append("too_fast" if signed > low else tag_for(tag, signed, low, "at_least"))
    for name in UNKNOWN:
        results[name] = {"score": None, "value": None, "evidence": "cannot be measured here"}
    if lived < 0.95:
        tags.append("early_end")
    if any(first > 0 for *_, first, _, _ in CRITERIA) and failed and len(failed) < len(CRITERIA):
        tags.append("incomplete")
    failed.sort()
    diagnosis = "; ".join("%s: %s" % (name, evidence) for _, name, evidence in failed)
    return {
        "criteria": results,
        "diagnosis": diagnosis or "every criterion is met",
        "failure_tags": sorted(set(tags)),
    }


def tag_for(tag, value, threshold, better):
    """A tag from the controlled list; a speed that is missed says how."""
    if tag != "speed":
        return tag
    if better == "at_most":
        return "too_fast"
    if value is None or abs(value) < 0.1 * threshold:
        return "no_motion"
    return "wrong_direction" if value < 0 else "too_slow"
'''


def write_judge(request: JudgeRequest) -> CodeDraft:
    """The judge for these criteria."""
    body = body_of(request.env_id)
    quantities = quantities_of(request.env_id)
    columns = request.columns or dict.fromkeys((*_ALL_COLUMNS, *body.spec.info_keys))
    rows: list[str] = []
    measured: list[str] = []
    known: set[str] = set()
    for criterion, measure in understood(request.env_id, request.criteria):
        code = (
            "np.ones(steps)"
            if measure.stat == "lasting"
            else judge_code(quantities[measure.quantity], columns)
        )
        if code is None:
            continue
        known.add(criterion.id)
        rows.append(f"    {_row(criterion, measure, body)},")
        measured.append(f'        "{criterion.id}": {code},')
    unknown = tuple(c.id for c in request.criteria if c.id not in known)
    head = _HEAD.format(
        prompt=in_a_docstring(request.prompt),
        horizon=body.horizon,
        rows="\n".join(rows),
        unknown=unknown,
        measured="\n".join(measured),
    )
    text = f"Measures {len(rows)} criteria on each episode."
    if unknown:
        text += f" Cannot measure: {', '.join(unknown)}."
    return CodeDraft(code=head + _BODY, explanation=text)


_ALL_COLUMNS = ("obs", "action", "next_obs", "qpos", "qvel", "xpos", "xquat", "step")


def _row(criterion: Criterion, measure: Measure, body: Body) -> str:
    row = (
        criterion.id,
        measure.stat,
        criterion.comparison,
        criterion.threshold,
        zero_credit(criterion, measure, body),
        measure.low,
        measure.high,
        round(measure.window[0], 4),
        round(measure.window[1], 4),
        _tag(measure, body),
    )
    return repr(row)


def _tag(measure: Measure, body: Body) -> str:
    if measure.stat == "miss" and not measure.low:
        return "drifts"
    if measure.stat == "lasting":
        return "fell" if body.has_weight or body.poles else "early_end"
    if measure.quantity.startswith("rise_"):
        return "wrong_posture"
    if measure.quantity in TAGS:
        return TAGS[measure.quantity]
    return "speed"


def _part(measure: Measure, body: Body) -> BodyEntry | None:
    """The part of the body whose height is measured."""
    return next((b for b in body.spec.bodies if rise_key(b) == measure.quantity), None)


def zero_credit(criterion: Criterion, measure: Measure, body: Body) -> float:
    """The value at which a criterion gets nothing."""
    t = criterion.threshold
    if criterion.comparison == "at_most":
        if measure.stat == "miss":
            return max(abs(measure.low or 0.0), 3 * t)
        if measure.quantity in ("effort", "action_change") and t < 1:
            return 1.0
        if measure.quantity == "height" and body.standing_height > t:
            return body.standing_height
        if part := _part(measure, body):
            return max(body.usual_rise(part), t + 1e-3)
        return t + max(2 * abs(t), 1e-3)
    zero = 0.0
    if part := _part(measure, body):
        zero = body.usual_rise(part)
    if measure.quantity == "height" and measure.stat != "share":
        zero = body.start_height
    return zero if zero < t else t - max(abs(t), 1e-3)
