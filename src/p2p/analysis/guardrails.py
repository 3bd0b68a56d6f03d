"""Signs that a reward is being gamed or that training goes nowhere.

They advise: a warning is something to look at, not a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from p2p.analysis import ROUNDING, Lines, block_medians, column, number, part, scale_to_one, trend
from p2p.contracts import Record

DOMINANT_SHARE = 0.9
PLATEAU_TAIL = 1 / 3
PLATEAU_GAIN = 0.05
_MIN_POINTS = 12
_CLEAR = 3.0  # standard errors: a line through eight points leaves few degrees of freedom
_LIKELY = 2.0  # enough to hold back a finding, not to make one
_DEAD = 1e-9


class GuardrailWarning(Record):
    """Something to look at."""

    kind: Literal["dominant_term", "dead_term", "traded_terms", "not_finite", "plateau", "decline"]
    message: str
    term: str | None = None


class Plateau(Record):
    """Where a learning curve goes in its last third."""

    state: Literal["rising", "plateau", "falling", "unclear"]
    """`unclear`: too few points, or a rise that the noise of the tail would hide."""
    since_step: int | None = None
    """Where the part that was looked at begins."""
    gain: float | None = None
    """Change over that part."""
    total_range: float | None = None
    """Range of the whole curve, without outliers."""

    def text(self) -> str:
        if self.gain is None:
            return "return: too few points to tell a trend"
        return (
            f"return: {self.state} since step {self.since_step} "
            f"({self.gain:+.4g} of a range of {self.total_range:.4g})"
        )


def check_training_plateau(lines: Lines) -> Plateau:
    """Return whether the return still moves, compared with its own range and noise."""
    steps, values = column(lines, "episodic_return")
    values, scale = scale_to_one(values)
    if len(values) < _MIN_POINTS:
        return Plateau(state="unclear")
    tail = part(values, 1 - PLATEAU_TAIL, 1.0)
    late, whole = trend(tail), trend(values)
    # Enough blocks that a flat end is not hidden in a block with the last of the rise.
    medians = block_medians(values, min(4 * 6, len(values) // 2))
    total = float(np.ptp(medians))
    threshold = max(PLATEAU_GAIN * total, _CLEAR * late.error, ROUNDING)
    state: Literal["rising", "plateau", "falling", "unclear"]
    if late.gain > threshold:
        state = "rising"
    elif late.gain < -threshold:
        state = "falling"
    else:
        hidden = _CLEAR * late.error > total / 4 and whole.gain > _LIKELY * whole.error
        state = "unclear" if hidden else "plateau"
    since = int(steps[len(values) - len(tail)])
    gain, whole_range = scale * late.gain, scale * total
    return Plateau(state=state, since_step=since, gain=gain, total_range=whole_range)


def check_terms(terms: Mapping[str, float]) -> list[GuardrailWarning]:
    """Terms that are not finite, dead, or drown all others; a reward of one term never drowns."""
    sizes = {name: abs(number(value)) for name, value in terms.items()}
    warnings = [
        GuardrailWarning(
            kind="not_finite", term=name, message=f"term {name} is {number(terms[name])}"
        )
        for name, size in sizes.items()
        if not np.isfinite(size)
    ]
    sizes = {name: size for name, size in sizes.items() if np.isfinite(size)}
    largest = max(sizes.values(), default=0.0)
    alive = {name: size for name, size in sizes.items() if size > _DEAD * largest}
    if alive:
        warnings += [
            GuardrailWarning(
                kind="dead_term", term=name, message=f"term {name} contributes nothing"
            )
            for name in sizes
            if name not in alive
        ]
    if len(alive) < 2:
        return warnings
    # Relative to the largest first: a sum of huge finite values may overflow.
    total = sum(size / largest for size in alive.values())
    for name, size in alive.items():
        share = size / largest / total
        if share > DOMINANT_SHARE:
            message = f"term {name} makes {share:.0%} of the reward; the others hardly count"
            warnings.append(GuardrailWarning(kind="dominant_term", term=name, message=message))
    return warnings


def check_traded_terms(
    first: Mapping[str, float], last: Mapping[str, float]
) -> GuardrailWarning | None:
    """Return whether between two evaluations one term's gain was paid for by the loss of others."""
    names = [n for n in first if np.isfinite(number(first[n])) and np.isfinite(number(last.get(n)))]
    change = {name: number(last[name]) - number(first[name]) for name in names}
    if len(change) < 2:
        return None
    winner = max(change, key=lambda name: change[name])
    gain = change[winner]
    lost = {name: c for name, c in change.items() if c < 0}
    if gain <= 0 or -sum(lost.values()) < gain / 2:
        return None
    worst = min(lost, key=lambda name: lost[name])
    message = (
        f"term {winner} rose by {gain:.4g} while others lost {-sum(lost.values()):.4g} "
        f"(most: {worst}, {lost[worst]:.4g})"
    )
    return GuardrailWarning(kind="traded_terms", term=winner, message=message)


def detect_reward_hacking(evaluations: Lines) -> list[GuardrailWarning]:
    """The terms of the last evaluation, and what changed since the first."""
    rows = [line["reward_terms"] for line in evaluations if line.get("reward_terms")]
    rows = [row for row in rows if isinstance(row, Mapping)]
    if not rows:
        return []
    warnings = check_terms(rows[-1])
    traded = check_traded_terms(rows[0], rows[-1])
    return [*warnings, traded] if traded else warnings


def check_run(training: Lines, evaluations: Lines) -> list[GuardrailWarning]:
    warnings = detect_reward_hacking(evaluations)
    curve = check_training_plateau(training)
    if curve.state == "plateau":
        warnings.append(GuardrailWarning(kind="plateau", message=curve.text()))
    elif curve.state == "falling":
        warnings.append(GuardrailWarning(kind="decline", message=curve.text()))
    return warnings
