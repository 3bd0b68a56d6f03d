"""Judging without a model: source text of `judge_fn(trajectory, summary)`, and synthesis."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NoReturn

from p2p.agents.builtin.gaits import JUDGE_TEXT
from p2p.agents.builtin.measures import Measure, read_measure
from p2p.agents.builtin.morphology import Morphology, morphology_of
from p2p.agents.builtin.quantities import (
    STATE_COLUMNS,
    STEP_COLUMNS,
    quantities_of,
    rise_key,
)
from p2p.agents.builtin.reward import in_a_docstring, understood
from p2p.agents.requests import (
    CodeDraft,
    JudgeRequest,
    SeenCriterion,
    Synthesis,
    SynthesisRequest,
    VisualRequest,
)
from p2p.contracts import Criterion
from p2p.inference.question import RequestRejected

TAGS = {
    "effort": "wasteful",
    "action_change": "jerky",
    "joint_speed": "jerky",
    "tilt": "fell",
    "pole_tilt": "fell",
    "height": "wrong_posture",
    "bounce": "too_slow",
    "flight": "too_slow",
    "ground_speed": "drifts",
    "parts_speed": "unstable",
    "clearance": "too_slow",
    "drift": "drifts",
    "cart_offset": "drifts",
    "cart_speed": "unstable",
    "cart_left": "drifts",
    "cart_right": "drifts",
    "stray_ahead": "drifts",
    "stray_aside": "drifts",
    "nose_up": "wrong_posture",
    "target_distance": "not_reached",
    "hand_distance": "not_reached",
    "asymmetry": "asymmetric",
    "foot_lift": "wrong_posture",
    "facing": "wrong_direction",
}
"""What it says of an episode that a criterion on this quantity is not met."""

_HEAD = '''"""Judge: {prompt}"""

import numpy as np

HORIZON = {horizon}
CRITERIA = (
    # id, statistic, better, threshold, no credit at, low, high, first, last, tag if it is hard
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


def fifth(values, used):
    """The mean over a part of the time, of which only a share may have been used."""
    return float(np.mean(values) * np.clip(used, 0.0, 1.0)) if len(values) else 0.0


def judge_fn(trajectory, summary):
    """Score every criterion. What an episode that ends early leaves undone counts as not done."""
    step = np.asarray(trajectory["step"], dtype=float)
    horizon = float(summary.get("max_episode_steps") or HORIZON)
    lived = (step[-1] + 1.0) / horizon
    dt = float(summary.get("dt") or 0.0)
    series = measured(trajectory)
    results, tags, missed = {}, [], []
    for name, stat, better, threshold, zero, low, high, first, last, tag in CRITERIA:
        values = np.asarray(series[name], dtype=float)
        inside = (step >= first * horizon) & (step < last * horizon)
        done = float(np.clip((lived - first) / (last - first), 0.0, 1.0))
        seen = values[inside]
        signed, value = None, None
        if stat == "lasting":
            value = min(1.0, lived)
        elif stat == "ends":
            value = float(bool(summary.get("terminated")))
        elif not len(seen):
            pass
        elif stat == "events":
            there = np.ones(len(seen), dtype=bool)
            if low is not None:
                there &= seen >= low
            if high is not None:
                there &= seen <= high
            value = float(np.count_nonzero(there[1:] & ~there[:-1]))
        elif stat == "share":
            good = np.ones(len(seen), dtype=bool)
            if low is not None:
                good &= seen >= low
            if high is not None:
                good &= seen <= high
            value = float(np.mean(good)) * done
        elif stat == "steady":
            fifths = np.linspace(first, last, 6) * horizon
            value = min(
                fifth(values[(step >= a) & (step < b)], (lived * horizon - a) / (b - a))
                for a, b in zip(fifths[:-1], fifths[1:]))
        elif stat == "highest":
            value = float(np.max(seen))
        elif stat == "swings":
            value = float(np.count_nonzero(np.diff(np.sign(seen[np.abs(seen) >= low]))))
        elif stat == "turns":
            # Who lands and rocks back a little has turned all the same.
            value = float(np.max(np.cumsum(seen))) * dt / (2.0 * np.pi)
        elif stat == "miss":
            signed = float(np.mean(seen)) * (done if low else 1.0)
            value = abs(signed - low)
        elif stat == "final":
            value = float(np.mean(seen[-max(1, len(seen) // 5):]))
        else:
            value = float(np.mean(seen))
        earned = 0.0 if value is None else credit(value, better, threshold, zero)
        reached = stat == "final" and tag == "not_reached" and earned >= 1.0
        timed = stat in ("mean", "final") or (stat == "miss" and not low)
        timed = timed or (stat == "events" and better == "at_most")
        score = earned * done if timed and not reached else earned
        evidence = "not seen: the episode ended before" if value is None else (
            "%s %.3g, wanted %s %.3g" % (stat, value, better.replace("_", " "), threshold))
        if stat in ("events", "ends") and value is not None:
            wanted = better.replace("_", " ")
            evidence = "%d times, wanted %s %d" % (value, wanted, threshold)
        elif done < 0.99 and stat != "lasting":
            evidence += "; only %.0f %% of the time was used" % (100 * done)
        results[name] = {"score": score, "value": value, "evidence": evidence}
        if earned < 1.0 or score < 0.8:
            missed.append((score, name, evidence))
        if earned < 0.8 and tag:
            if signed is None or tag != "speed":
                tags.append(tag_for(tag, value, threshold, better))
            else:
                tags.append("too_fast" if signed > low else tag_for(tag, signed, low, "at_least"))
    for name in UNKNOWN:
        results[name] = {"score": None, "value": None, "evidence": "cannot be measured here"}
    if lived < 0.95:
        tags.append("early_end")
    poor = sum(score < 0.8 for score, _, _ in missed)
    if any(first > 0 for *_, first, _, _ in CRITERIA) and 0 < poor < len(CRITERIA):
        tags.append("incomplete")
    missed.sort()
    diagnosis = "; ".join("%s: %s" % (name, evidence) for _, name, evidence in missed)
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
    """The judge for these criteria; without columns in the request, for all that there are."""
    model = morphology_of(request.env_id)
    quantities = quantities_of(request.env_id)
    columns = request.columns or {
        *(*STEP_COLUMNS, *STATE_COLUMNS),
        *(*model.spec.info_keys, *model.spec.quantities),
    }
    rows: dict[str, str] = {}
    series: list[str] = []
    for criterion, measure in understood(request.env_id, request.criteria):
        code: str | None = "np.ones(steps)"
        if measure.quantity:
            code = quantities[measure.quantity].judge_code(columns)
        if code is not None:
            zero, (first, last) = zero_credit(criterion, measure, model), measure.window
            row = (criterion.id, measure.stat, criterion.comparison, criterion.threshold, zero,
                   measure.low, measure.high, round(first, 4), round(last, 4),
                   _tag(measure, model) if criterion.hard else "")  # fmt: skip
            rows[criterion.id] = f"    {row!r},"
            series.append(f'        "{criterion.id}": {code},')
    unknown = tuple(c.id for c in request.criteria if c.id not in rows)
    head = _HEAD.format(
        prompt=in_a_docstring(request.prompt),
        horizon=model.horizon,
        rows="\n".join(rows.values()),
        unknown=unknown,
        measured="\n".join(series),
    )
    if any("match_" in line for line in series):
        head += f"\n{JUDGE_TEXT}\n"
    text = f"Measures {len(rows)} criteria on each episode."
    if unknown:
        text += f" Cannot measure: {', '.join(unknown)}."
    return CodeDraft(code=head + _BODY, explanation=text)


def measurable(
    env_id: str, criteria: Sequence[Criterion], columns: Collection[str]
) -> tuple[Criterion, ...]:
    """The criteria whose measure is one of ours to the letter, and can be read off the columns."""
    quantities = quantities_of(env_id)

    def is_ours(criterion: Criterion) -> bool:
        measure = read_measure(criterion.measure, quantities)
        if measure is None or not measure.quantity:
            return measure is not None
        return quantities[measure.quantity].judge_code(columns) is not None

    return tuple(filter(is_ours, criteria))


def _tag(measure: Measure, model: Morphology) -> str:
    if measure.stat == "miss" and not measure.low:
        return "drifts"
    if measure.stat == "steady":
        return "unstable"
    if measure.stat == "swings":
        return "asymmetric" if measure.quantity in ("stride", "lazy_leg") else "speed"
    if not measure.quantity:
        return "fell" if model.height_joint or model.poles else "early_end"
    if measure.quantity.startswith(("rise_", "lift_")) or measure.quantity.endswith("_match"):
        return "wrong_posture"
    return TAGS.get(measure.quantity, "speed")


def zero_credit(criterion: Criterion, measure: Measure, model: Morphology) -> float:
    """The value at which a criterion gets nothing."""
    t = criterion.threshold
    parts = (body for body in model.spec.bodies if rise_key(body) == measure.quantity)
    usual = next((model.usual_rise(part) for part in parts), None)
    if criterion.comparison == "at_most":
        if measure.stat == "miss":
            return max(abs(measure.low or 0.0), 3 * t)
        if measure.quantity in ("effort", "action_change") and t < 1:
            return 1.0
        if measure.quantity == "height" and model.standing_height > t:
            return model.standing_height
        return t + max(2 * abs(t), 1e-3) if usual is None else max(usual, t + 1e-3)
    zero = usual or 0.0
    if measure.quantity == "height" and measure.stat != "share":
        zero = model.start_height
    return zero if zero < t else t - max(abs(t), 1e-3)


# --- two judges on one episode --------------------------------------------------------------------

MEASURED, SEEN = 0.7, 0.3
"""What each judge's score counts where both have one."""


def cannot_see(_: VisualRequest) -> NoReturn:
    """Raises RequestRejected: rules do not look at pictures."""
    raise RequestRejected(
        "the built-in author cannot see: name a vision model for the visual judge, or none"
    )


def synthesise(request: SynthesisRequest) -> Synthesis:
    """A weighted mean of the two judges; the nearer they are, the more confident."""
    code = {score.id: score for score in request.code.criteria}
    vlm = {score.id: score.score for score in request.vlm.criteria}
    criteria: list[SeenCriterion] = []
    gaps: list[float] = []
    for criterion in request.criteria:
        measured = code[criterion.id].score if criterion.id in code else None
        seen = vlm.get(criterion.id)
        evidence = code[criterion.id].evidence if criterion.id in code else ""
        score = seen if measured is None else measured
        if measured is not None and seen is not None:
            score = MEASURED * measured + SEEN * seen
            gaps.append(abs(measured - seen))
            if gaps[-1] > 0.3:
                differ = f"the judges differ ({measured:.2f} measured, {seen:.2f} seen)."
                evidence = f"{differ} {evidence}"
        criteria.append(SeenCriterion(id=criterion.id, score=score, evidence=evidence.strip()))
    texts = (request.code.diagnosis, request.vlm.diagnosis)
    return Synthesis(
        analysis=f"{len(gaps)} criteria were both measured and seen; measured ones count more.",
        criteria=tuple(criteria),
        diagnosis=" / ".join(filter(None, texts)) or "no judge said anything",
        failure_tags=tuple(dict.fromkeys((*request.code.failure_tags, *request.vlm.failure_tags))),
        confidence=1.0 - sum(gaps) / len(gaps) if gaps else 0.5,
    )
