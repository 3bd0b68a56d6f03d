"""report.html: one page without scripts and without anything from elsewhere, read from disk.

Everything that a person, a model or another machine wrote is escaped; videos are linked by their
place in the benchmark's folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from urllib.parse import quote

from p2p.benchmark import report_text as text
from p2p.benchmark.report import CaseReport, Report

_SIZE, _MARGIN = 260, 34


def html(report: Report) -> str:
    """The page."""
    style = (resources.files("p2p.benchmark") / "report.css").read_text(encoding="utf-8")
    title = escape(f"Benchmark {report.benchmark.benchmark_id}")
    parts = [
        f"<h1>{title}</h1>",
        *(f"<p>{escape(line)}</p>" for line in text.about(report)),
        _tiles(report),
    ]
    for heading, groups in text.tables(report)[1:]:
        parts += [f"<h2>{heading}</h2>", _table(text.GROUP_HEAD, map(text.group_row, groups))]
    parts += ["<h2>Judge and truth</h2>", '<div class="beside">', _scatter(report)]
    legend = "Each dot is a prompt; where judge and truth differ it is red."
    parts += [_list([*text.agreement(report), legend]), "</div>"]
    if found := text.gates(report):
        parts += ["<h2>Gates</h2>", _list(found)]
    if found := text.not_finished(report):
        parts += ["<h2>Without a verdict</h2>", _list(found)]
    parts += ["<h2>Prompts</h2>", '<div class="cards">', *map(_card, report.cases), "</div>"]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title}</title><style>\n{style}</style></head>\n<body><main>\n"
        + "\n".join(parts)
        + f"\n<footer>made {report.made_at:%Y-%m-%d %H:%M} UTC</footer></main></body></html>\n"
    )


def _tiles(report: Report) -> str:
    group = report.overall
    correlation = report.agreement.rank_correlation
    tiles = [
        ("passed (judge)", text.rate(group.judged)),
        ("passed (truth)", text.rate(group.true)),
        ("rank correlation", text.number(correlation)),
        ("minutes a prompt", f"{group.minutes:.1f}"),
        ("cost a prompt", text.money(group.cost_usd)),
    ]
    inside = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in tiles
    )
    return f'<dl class="tiles">{inside}</dl>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _scatter(report: Report) -> str:
    """Each prompt: how much of the truth's threshold is attained, and the judge's score."""
    far = _SIZE - _MARGIN
    span = far - 10
    dots = []
    for found in report.cases:
        if found.truth is None or found.score is None:
            continue
        x, y = _MARGIN + found.truth.attained * span, far - found.score * span
        right = (found.outcome == "passed") == found.truth.passed
        label = escape(f"{found.case.env_id}: {found.case.instruction}")
        dots.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" class="{"agree" if right else "differ"}">'
            f"<title>{label}</title></circle>"
        )
    return (
        f'<svg viewBox="0 0 {_SIZE} {_SIZE}" role="img" aria-label="Judge\'s score by truth">'
        f'<path d="M{_MARGIN} 10V{far}H{_SIZE - 10}" class="axis"/>'
        f'<text x="{_SIZE / 2}" y="{_SIZE - 8}" text-anchor="middle">truth attained, 0 to 1</text>'
        f'<text x="14" y="{_SIZE / 2}" text-anchor="middle" '
        f'transform="rotate(-90 14 {_SIZE / 2})">judge\'s score, 0 to 1</text>'
        f"{''.join(dots)}</svg>"
    )


def _card(found: CaseReport) -> str:
    case = found.case
    facts = dict(zip(text.CASE_HEAD, text.case_row(found), strict=True))
    shown = ("score", "truth", "iterations", "minutes", "tokens", "cost")
    rows = "".join(f"<dt>{name}</dt><dd>{escape(facts[name])}</dd>" for name in shown)
    said = f'<p class="said">{escape(found.message)}</p>' if found.message else ""
    mark = '<span class="differ">judge and truth differ</span>' if _differ(found) else ""
    return (
        f'<article class="{found.outcome}"><h3>{escape(case.instruction)}</h3>'
        f"<p>{escape(case.env_id)} · {escape(case.category)} · {escape(case.difficulty)}"
        f' · <b class="{found.outcome}">{escape(facts["outcome"])}</b> {mark}</p>'
        f"{_video(found)}<dl>{rows}</dl>{said}"
        f'<p><a href="{_link(found.folder)}/report.md">report</a> '
        f'· <a href="{_link(found.folder)}/">folder</a></p></article>'
    )


def _differ(found: CaseReport) -> bool:
    return found.truth is not None and (found.outcome == "passed") != found.truth.passed


def _video(found: CaseReport) -> str:
    if not found.videos:
        return '<p class="novideo">no video</p>'
    median = next((video for video in found.videos if "median" in video), found.videos[0])
    return (
        f'<video src="{_link(median)}" controls loop muted playsinline preload="metadata"></video>'
    )


def _link(path: str) -> str:
    """A relative link; a name with a colon in it is no address."""
    return escape("./" + quote(path))
