"""A run as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from unstable.dashboard import View, WinRate

WIDTH, HEIGHT = 220, 44
"""Pixels of a curve."""
HEADER = "<tr><th>game</th><th>opponent</th><th>checkpoint</th><th>result</th><th></th></tr>"


def draw_run(view: View) -> str:
    """Return the status, and a row by game and opponent with the curve over checkpoints."""
    total = "" if view.updates is None else f" of {view.updates:,}"
    title = f"<b>{escape(view.run_name)}</b> {escape(view.status)}, update {view.step:,}{total}"
    rows = "".join(map(_draw_row, view.win_rates))
    message = f"<p>{escape(view.message)}</p>" if view.message else ""
    return f"<div><p>{title}</p>{message}<table>{HEADER}{rows}</table></div>"


def _draw_row(rate: WinRate) -> str:
    if rate.players == 1:
        result = f"mean reward {rate.reward:.3f} ± {rate.reward_se:.3f}"
        values = [one.reward for one in rate.history]
    else:
        result = f"win rate {rate.win_rate:.3f} ({rate.low:.3f} to {rate.high:.3f})"
        values = [one.win_rate for one in rate.history]
    cells = (rate.env_id, rate.opponent, rate.ckpt_uid, result)
    texts = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f"<tr>{texts}<td>{_draw_curve(values)}</td></tr>"


def _draw_curve(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    scale = (HEIGHT - 4) / (high - low or 1.0)
    step = WIDTH / max(1, len(values) - 1)
    points = " ".join(
        f"{i * step:.1f},{HEIGHT - 2 - (value - low) * scale:.1f}" for i, value in enumerate(values)
    )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}"><polyline points="{points}" fill="none"'
        ' stroke="currentColor" stroke-width="1.5"/></svg>'
    )
