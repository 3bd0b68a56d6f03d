"""Judging without a model: source text of `judge_fn(trajectory, summary)`, and synthesis."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib.resources import files
from string import Template
from typing import NoReturn

from p2p.agents.builtin.gaits import judge_functions
from p2p.agents.builtin.lexicon import Names, index_phrases, load_words
from p2p.agents.builtin.measures import Measure, read_measure
from p2p.agents.builtin.morphology import Morphology, morphology_of
from p2p.agents.builtin.quantities import (
    STATE_COLUMNS,
    STEP_COLUMNS,
    quantities_of,
    rise_key,
)
from p2p.agents.builtin.reward import clean_docstring, match_criteria
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
from p2p.records.formatting import format_score

TAGS = index_phrases(load_words(Names, "names").tags)
"""What it says of an episode that a criterion on this quantity is not met."""

_TEMPLATE = Template((files(__package__) / "templates" / "judge.txt").read_text("utf-8"))


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
    for criterion, measure in match_criteria(request.env_id, request.criteria):
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
    functions = judge_functions("\n".join(series))
    code = _TEMPLATE.substitute(
        prompt=clean_docstring(request.prompt),
        horizon=model.horizon,
        rows="\n".join(rows.values()),
        unknown=unknown,
        measured="\n".join(series),
        functions=f"\n{functions}\n" if functions else "",
    )
    text = f"Measures {len(rows)} criteria on each episode."
    if unknown:
        text += f" Cannot measure: {', '.join(unknown)}."
    return CodeDraft(code=code, explanation=text)


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


def reject_pictures(_: VisualRequest) -> NoReturn:
    """Raises RequestRejected: rules do not look at pictures."""
    raise RequestRejected(
        "the built-in author has no vision: name a vision model for the visual judge, or none"
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
                ours, theirs = format_score(measured), format_score(seen)
                evidence = f"the judges differ ({ours} measured, {theirs} seen). {evidence}"
        criteria.append(SeenCriterion(id=criterion.id, score=score, evidence=evidence.strip()))
    texts = (request.code.diagnosis, request.vlm.diagnosis)
    return Synthesis(
        analysis=f"{len(gaps)} criteria were both measured and seen; measured ones count more.",
        criteria=tuple(criteria),
        diagnosis=" / ".join(filter(None, texts)) or "no judge said anything",
        failure_tags=tuple(dict.fromkeys((*request.code.failure_tags, *request.vlm.failure_tags))),
        confidence=1.0 - sum(gaps) / len(gaps) if gaps else 0.5,
    )
