"""Whether PPO itself was healthy: exploration, value function, step sizes, returns."""

from __future__ import annotations

from typing import Literal

import numpy as np

from p2p.analysis import Curve, Direction, Lines, column, direction, number, part
from p2p.analysis.guardrails import Plateau, check_training_plateau
from p2p.contracts import Record

_TERM = "reward_term_"
_COLLAPSED = 0.05
_EARLY_COLLAPSE = 0.25
_GROWN = 1.5


class Exploration(Record):
    """The policy's Gaussian noise, against its own beginning.

    Not by its entropy: that has no zero to be measured from and may well be negative.
    """

    state: Literal["healthy", "collapsed", "collapsed_early", "growing", "unchanged", "unknown"]
    std_ratio: float | None = None
    """Standard deviation at the end over that at the beginning."""


class Health(Record):
    """One metric and what is to be thought of it."""

    state: Literal["good", "fair", "bad", "unknown"]
    value: float | None = None
    detail: str = ""


class TermChange(Record):
    """A reward term or another metric of training, at the beginning and at the end."""

    first: float
    last: float
    trend: Direction


class TrainingDynamics(Record):
    """The whole picture, for a person or a prompt."""

    updates: int
    final_step: int | None
    returns: Plateau
    final_return: float | None
    best_return: float | None
    exploration: Exploration
    value_loss: Health
    kl: Health
    clip_fraction: Health
    explained_variance: Health
    terms: dict[str, TermChange]
    episode_length: TermChange | None = None
    """Steps of a training episode."""
    failed_share: TermChange | None = None
    """Of the training episodes that ended, those that the reward's `failed` ended; None: it has
    none."""
    not_finite: dict[str, int]
    """Metric to number of lines where it was NaN or infinite; these are left out above."""

    def text(self) -> str:
        if not self.updates:
            return "no training lines"
        lines = [f"{self.updates} updates to step {self.final_step}", self.returns.text()]
        if self.final_return is not None:
            lines[-1] += f", last {self.final_return:.4g}, best {self.best_return:.4g}"
        lines.append(_exploration_text(self.exploration))
        for name in ("value_loss", "kl", "clip_fraction", "explained_variance"):
            health: Health = getattr(self, name)
            shown = "no data" if health.value is None else f"{health.value:.4g}"
            lines.append(
                f"{name}: {shown}, {health.state}" + f" ({health.detail})" * bool(health.detail)
            )
        lines += [
            f"term {name}: {term.first:.4g} to {term.last:.4g}, {term.trend}"
            for name, term in self.terms.items()
        ]
        if self.episode_length is not None:
            lines.append(
                f"steps of a training episode: {_describe_change(self.episode_length, '.4g')}"
            )
        if self.failed_share is not None:
            lines.append(f"of them ended by `failed`: {_describe_change(self.failed_share, '.0%')}")
        lines += [f"{name}: not finite in {n} lines" for name, n in self.not_finite.items()]
        return "\n".join(lines)


def analyze_training(lines: Lines) -> TrainingDynamics:
    steps, _ = column(lines, "global_step")
    returns = column(lines, "episodic_return")[1]
    names = {name for line in lines for name in line}
    return TrainingDynamics(
        updates=len(lines),
        final_step=int(steps[-1]) if len(steps) else None,
        returns=check_training_plateau(lines),
        final_return=float(np.mean(part(returns, 0.9, 1.0))) if len(returns) else None,
        best_return=float(returns.max()) if len(returns) else None,
        exploration=judge_exploration(column(lines, "policy_std")[1]),
        value_loss=judge_value_loss(column(lines, "value_loss")[1]),
        kl=judge_kl(column(lines, "approx_kl")[1]),
        clip_fraction=judge_clip_fraction(column(lines, "clip_fraction")[1]),
        explained_variance=judge_explained_variance(column(lines, "explained_variance")[1]),
        terms={
            name.removeprefix(_TERM): change
            for name in sorted(names)
            if name.startswith(_TERM) and (change := _change(lines, name)) is not None
        },
        episode_length=_change(lines, "episode_length"),
        failed_share=_change(lines, "failed_share"),
        not_finite={
            name: bad
            for name in sorted(names - {"type", "device"})
            if (bad := sum(not np.isfinite(number(li[name])) for li in lines if name in li))
        },
    )


def _change(lines: Lines, name: str) -> TermChange | None:
    """A metric at the beginning and at the end; None where it was never recorded."""
    values = column(lines, name)[1]
    if not len(values):
        return None
    return TermChange(
        first=float(np.mean(part(values, 0.0, 0.1))),
        last=float(np.mean(part(values, 0.9, 1.0))),
        trend=direction(values),
    )


def _describe_change(change: TermChange, digits: str) -> str:
    return f"{change.first:{digits}} at first, {change.last:{digits}} at the end"


def judge_exploration(std: Curve) -> Exploration:
    """Return how the noise of a Gaussian policy went, from its standard deviation."""
    logs = np.log(std[std > 0])
    if len(logs) < 2:
        return Exploration(state="unknown")
    ratios = np.exp(np.clip(logs - np.median(part(logs, 0.0, 0.02)), -50, 50))
    ratio = float(np.median(part(ratios, 0.95, 1.0)))
    early = float(np.median(part(ratios, 0.15, 0.2)))
    state: Literal["healthy", "collapsed", "collapsed_early", "growing", "unchanged"] = "healthy"
    if len(ratios) >= 10 and early < _EARLY_COLLAPSE:
        state = "collapsed_early"
    elif ratio < _COLLAPSED:
        state = "collapsed"
    elif ratio > _GROWN:
        state = "growing"
    elif len(ratios) >= 20 and 0.98 < ratio < 1.02:
        state = "unchanged"
    return Exploration(state=state, std_ratio=ratio)


def judge_value_loss(losses: Curve) -> Health:
    """Bad when the end lies far above everything before it and still rises."""
    if len(losses) < 10:
        return Health(state="unknown", value=float(losses[-1]) if len(losses) else None)
    late = float(np.median(part(losses, 0.8, 1.0)))
    before = float(np.median(part(losses, 0.0, 0.8)))
    if late > 5 * before and direction(part(losses, 0.5, 1.0)) == "rising":
        return Health(state="bad", value=late, detail=f"diverging, from a median of {before:.4g}")
    return Health(state="good", value=late)


def judge_kl(divergences: Curve) -> Health:
    """Bad when updates are large throughout, fair when some stand far out of the others."""
    if not len(divergences):
        return Health(state="unknown")
    typical = float(np.median(divergences))
    spikes = int(np.sum(divergences > max(0.03, 5 * typical)))
    if typical > 0.05:
        return Health(state="bad", value=typical, detail="updates move the policy too far")
    if spikes:
        return Health(state="fair", value=typical, detail=f"{spikes} of {len(divergences)} spike")
    return Health(state="good", value=typical)


def judge_clip_fraction(fractions: Curve) -> Health:
    """Return how much of the last half's updates was cut off."""
    if not len(fractions):
        return Health(state="unknown")
    typical = float(np.median(part(fractions, 0.5, 1.0)))
    if typical > 0.3:
        return Health(state="bad", value=typical, detail="most of the update is clipped away")
    if typical < 0.002:
        return Health(state="fair", value=typical, detail="the policy hardly changes")
    return Health(state="good", value=typical)


def judge_explained_variance(values: Curve) -> Health:
    """Return how much of the returns the value function explains at the end."""
    if not len(values):
        return Health(state="unknown")
    typical = float(np.median(part(values, 0.8, 1.0)))
    if typical > 0.5:
        return Health(state="good", value=typical)
    if typical > 0.1:
        return Health(state="fair", value=typical)
    return Health(state="bad", value=typical, detail="the value function explains nothing")


def _exploration_text(exploration: Exploration) -> str:
    if exploration.std_ratio is None:
        return "exploration: no data"
    text = {
        "healthy": "shrinks as it should",
        "collapsed": "has all but vanished",
        "collapsed_early": "vanished in the first fifth of training",
        "growing": "grows: the noise pays more than the reward",
        "unchanged": "has not changed",
        "unknown": "unknown",
    }[exploration.state]
    return f"exploration: {text} (std x {exploration.std_ratio:.3g})"
