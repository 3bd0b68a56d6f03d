"""From a sentence to criteria: goals bound to a body, and what goes without saying."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from p2p.agents.builtin import manners, motions
from p2p.agents.builtin.body import Body, body_of
from p2p.agents.builtin.grammar import Goal, Parsed, parse
from p2p.agents.builtin.measures import WHOLE, Measure, read_measure
from p2p.agents.builtin.quantities import quantities_of
from p2p.agents.builtin.sheet import Sheet
from p2p.agents.requests import IntentProposal, IntentRequest
from p2p.contracts import Criterion

PROVIDERS = (
    "To have any sentence understood, configure a language model: set ANTHROPIC_API_KEY, "
    "OPENAI_API_KEY or GEMINI_API_KEY, or name a local one (Ollama, vLLM) as the model."
)

LEAST, MOST = 5, 10

Rule = Callable[[Sheet, Goal], None]

RULES: Mapping[str, Rule] = {
    **{
        rule.__name__: rule
        for rule in (
            *(motions.go, motions.run, motions.crawl, motions.spin, motions.turn, motions.roll),
            *(motions.flip, motions.jump, motions.hop, motions.stand, motions.balance),
            *(motions.crouch, motions.lie, motions.get_up, motions.reach),
            *(manners.upright, manners.level, manners.low, manners.high, manners.symmetric),
            *(manners.smooth, manners.quiet, manners.efficient, manners.in_place),
            *(manners.straight, manners.stable, manners.on_back),
        )
    },
    "push": motions.reach,
    "raise": motions.raise_or_lower,
    "lower": motions.raise_or_lower,
}
"""What each motion and quality of the lexicon asks for."""

OPPOSITES: Mapping[str, str] = {
    "go": "stand", "run": "go", "fall": "stable", "jump": "quiet", "hop": "quiet",
    "spin": "straight", "turn": "straight", "roll": "stable", "flip": "stable",
    "crouch": "upright", "lie": "get_up", "stand": "go", "low": "high", "high": "low",
    "straight": "straight", "crawl": "go",
}  # fmt: skip
"""What a forbidden motion asks for instead."""


def write_criteria(request: IntentRequest) -> IntentProposal:
    """Criteria for a sentence; a refusal where nothing of it can be measured on this body."""
    body = body_of(request.env_id)
    parsed = parse(request.prompt, body.limb_words)
    if not parsed.goals:
        words = ", ".join(parsed.unused) or "no words"
        return IntentProposal(
            criteria=(),
            unused_words=parsed.unused,
            refusal=f"The built-in author knows no motion in this sentence ({words}). {PROVIDERS}",
        )
    sheet = bind(parsed, body)
    unused = (*_foreign(parsed.unused, body), *_stray_amounts(parsed))
    if not any(criterion.category == "task" for criterion in sheet.found):
        cannot = "; ".join(dict.fromkeys(sheet.cannot)) or "what was asked"
        return IntentProposal(
            criteria=(),
            unused_words=unused,
            refusal=f"The built-in author cannot measure on {body.spec.name}: {cannot}. Another "
            f"environment may be able to. {PROVIDERS}",
        )
    return IntentProposal(
        criteria=tuple(sheet.found[:MOST]), unused_words=unused, note=_note(parsed, sheet)
    )


_UNIT_OF = {"go": "m/s", "run": "m/s", "crawl": "m/s", "spin": "rad/s", "turn": "rad/s",
            "jump": "m", "hop": "m"}  # fmt: skip
"""The stated numbers that a motion can use."""


def _stray_amounts(parsed: Parsed) -> tuple[str, ...]:
    """Numbers that were said and cannot be used."""
    return tuple(
        f"{goal.amount.value:.3g} {goal.amount.unit}"
        for goal in parsed.goals
        if goal.amount is not None and goal.amount.unit != _UNIT_OF.get(goal.motion)
    )


def _foreign(words: Sequence[str], body: Body) -> tuple[str, ...]:
    """Words that are not the body's own name, or a part of it."""
    name = body.spec.name.lower()
    return tuple(word for word in words if len(word) < 3 or word.rstrip("s") not in name)


def bind(parsed: Parsed, body: Body) -> Sheet:
    """The criteria that the goals ask for, and the usual ones on top."""
    sheet = Sheet(body, quantities_of(body.spec.env_id))
    windows = _windows(len(parsed.parts))
    for part, window in zip(parsed.parts, windows, strict=False):
        sheet.window = window
        sheet.turning = any(goal.motion in ("turn", "spin") for goal in part)
        for goal in part:
            apply_goal(sheet, goal)
    sheet.window = WHOLE
    task = any(criterion.category == "task" for criterion in sheet.found)
    if sheet.found and not task and not sheet.cannot:
        # "Do not fall": nothing else is asked for, so that is the task.
        sheet.found[0] = sheet.found[0].model_copy(update={"category": "task", "weight": 1.0})
    if any(criterion.category == "task" for criterion in sheet.found):
        _usual(sheet, parsed)
    return sheet


def apply_goal(sheet: Sheet, goal: Goal) -> None:
    """Add what one goal asks for."""
    name = OPPOSITES.get(goal.motion) if goal.negated else goal.motion
    if name is None or name not in RULES:
        sheet.cannot.append(f"{'not ' if goal.negated else ''}{goal.motion}")
        return
    RULES[name](sheet, goal)


def _windows(parts: int) -> Sequence[tuple[float, float]]:
    if parts <= 1:
        return (WHOLE,)
    if parts == 2:
        return ((0.0, 0.5), (0.5, 1.0))
    return ((0.0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1.0))


def _usual(sheet: Sheet, parsed: Parsed) -> None:
    """What goes without saying: not falling, not shaking, not wasting."""
    motions = {goal.motion for goal in parsed.goals if not goal.negated}
    tumbling = motions & {"flip", "roll", "lie", "get_up", "on_back"}
    still = bool(motions & {"stand", "crouch", "lie", "balance"})
    manners.lasts(sheet)
    if not tumbling and not sheet.body.poles:
        manners.upright(sheet, Goal("upright"), task=False, limit=0.8)
        if "crawl" not in motions and "low" not in motions and "crouch" not in motions:
            manners.not_fallen(sheet)
    sheet.add("Spends no more effort than needed", Measure("mean", "effort"), "at_most",
              0.3 if still else 0.65, category="efficiency", weight=0.1)  # fmt: skip
    sheet.add("Does not shake", Measure("mean", "action_change"), "at_most",
              0.25 if still else 0.4, category="dynamics", weight=0.1)  # fmt: skip
    for title, measure, comparison, threshold in _FILLERS:
        if len(sheet.found) < LEAST:
            sheet.add(title, measure, comparison, threshold, category="dynamics", weight=0.1)


_FILLERS = (
    ("Moves its joints within reason", Measure("mean", "joint_speed"), "at_most", 12.0),
    ("Moves the cart calmly", Measure("mean", "cart_speed"), "at_most", 1.0),
    ("Keeps the cart near the middle", Measure("mean", "cart_offset"), "at_most", 0.7),
    ("Is seldom at its strongest", Measure("share", "effort", high=0.9), "at_least", 0.7),
    ("Seldom jerks", Measure("share", "action_change", high=0.6), "at_least", 0.8),
)
"""For bodies of which little else can be said."""


def _seen(criterion: Criterion, sheet: Sheet) -> bool:
    measure = read_measure(criterion.measure, sheet.quantities)
    if measure is None or not measure.quantity:
        return True
    return sheet.quantities[measure.quantity].reward is not None


def _note(parsed: Parsed, sheet: Sheet) -> str:
    notes = []
    if sheet.cannot:
        notes.append(f"With this body I cannot {', cannot '.join(dict.fromkeys(sheet.cannot))}.")
    unseen = [c.title for c in sheet.found if c.category == "task" and not _seen(c, sheet)]
    if unseen:
        notes.append(
            f"The observation does not show what “{unseen[0]}” needs: train with side_info."
        )
    if len(parsed.parts) > 3:
        notes.append("Of a sequence I take the first three parts.")
    if len(parsed.parts) > 1:
        notes.append(
            "The policy sees no clock: a change halfway succeeds only where the body's own state "
            "tells the parts of the sequence apart."
        )
    return " ".join(notes)
