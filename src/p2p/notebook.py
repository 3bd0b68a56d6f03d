"""What a notebook shows of sessions, runs and environments: tables, curves, videos."""

from __future__ import annotations

import base64
from html import escape
from typing import TYPE_CHECKING

from p2p.records.formatting import criterion_results, format_score
from p2p.training.env_spec import EnvSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from p2p.records.session_view import RunView, SessionView

MAX_VIDEO_BYTES = 20 << 20
WIDTH, HEIGHT = 360, 120


def paragraph(text: str, title: str = "") -> str:
    """A line of text, after a title in bold."""
    return f"<p>{f'<b>{escape(title)}</b> ' if title else ''}{escape(text)}</p>" if text else ""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; nothing in its cells is taken for markup."""
    first = "".join(f"<th>{escape(title)}</th>" for title in head)
    others = ("".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows)
    return f"<table><tr>{first}</tr>{''.join(f'<tr>{row}</tr>' for row in others)}</table>"


def curve(points: Sequence[tuple[int, float]], title: str) -> str:
    """A line through (step, value), with its lowest and highest value; empty for one point."""
    if len(points) < 2:
        return ""
    steps, values = zip(*points, strict=True)
    low, high, span = min(values), max(values), (max(values) - min(values)) or 1.0
    last = max(steps) or 1
    path = " ".join(
        f"{step / last * WIDTH:.1f},{HEIGHT - (value - low) / span * HEIGHT:.1f}"
        for step, value in points
    )
    return (
        f'<p>{escape(title)}: {low:,.1f} to {high:,.1f}</p><svg width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="-2 -2 {WIDTH + 4} {HEIGHT + 4}"><polyline points="{path}" fill="none" '
        'stroke="currentColor" stroke-width="2"/></svg>'
    )


def video(path: Path | None) -> str:
    """A video inside the page; empty where there is none, or it is too large for that."""
    if path is None or not path.is_file() or path.stat().st_size > MAX_VIDEO_BYTES:
        return ""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<video controls loop width="{WIDTH}" src="data:video/mp4;base64,{data}"></video>'


def session_page(view: SessionView, verdict: str, film: Path | None) -> str:
    """A session: its verdict, criteria, video and curve."""
    met = {True: "yes", False: "no", None: ""}
    rows = [
        (each.demand, each.measured, format_score(each.score), met[each.met])
        for each in criterion_results(view, view.best)
    ]
    run = view.best.best_run if view.best else None
    return "".join([
        paragraph(f"{view.prompt}  {view.env_id}", str(view.status)),
        paragraph(verdict),
        table(("asked", "measured", "score", "met"), rows) if rows else "",
        video(film),
        curve(run.training_curve, "return") if run else "",
    ])  # fmt: skip


def run_page(view: RunView, film: Path | None) -> str:
    """A training run: its state, curve and video."""
    value = "" if view.mean_return is None else f", return {view.mean_return:,.1f}"
    env_id = view.config.env_id if view.config else ""
    head = paragraph(f"{env_id}: {view.status}{value}  {view.record.path}", "Training run")
    return head + curve(view.training_curve, "return") + video(film)


class Environment(EnvSpec):
    """An environment's observation, actions, joints, bodies and quantities."""

    def _repr_html_(self) -> str:
        rows = [(each.index, each.name, each.unit, each.description) for each in self.observation]
        actions = [(each.index, each.name, each.unit, each.description) for each in self.actions]
        return "".join([
            paragraph(self.description, self.env_id),
            table(("obs", "name", "unit", "meaning"), rows),
            table(("action", "name", "unit", "meaning"), actions),
        ])  # fmt: skip
