"""A report for people: one list of sections, written as Markdown and as a page.

The page has no scripts and nothing from elsewhere, and can be opened from disk. Everything that a
user, a model or another machine wrote is escaped; videos are linked by their place in the folder.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from p2p.benchmark.report import BenchmarkReport, CaseReport, Group, Rate
from p2p.files import save_model, write_text

OUTCOMES = {
    "passed": "passed",
    "unverified": "unverified",
    "not_passed": "not passed",
    "error": "error",
    "unfinished": "not finished",
    "not_run": "not run",
}
NOTHING = "-"
SIZE, MARGIN = 260, 34
_MARKDOWN = re.compile(r"([\\|`*_<>\[\]])")


@dataclass(frozen=True)
class Section:
    """A heading with lines or a table below it."""

    title: str
    lines: Sequence[str] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def publish(report: BenchmarkReport, folder: Path) -> tuple[Path, ...]:
    """Write report.md, report.html and report.json; returns their paths."""
    files = tuple(folder / f"report.{kind}" for kind in ("md", "html", "json"))
    write_text(files[0], markdown(report))
    write_text(files[1], page(report))
    save_model(files[2], report)
    return files


# --- what a report says ---------------------------------------------------------------------------


def sections(report: BenchmarkReport) -> list[Section]:
    """All but the cases; those without content are left out."""
    tables = (
        ("All", [report.overall]),
        ("By difficulty", report.by_difficulty),
        ("By environment", report.by_env),
        ("By category", report.by_category),
    )
    every = [
        *(
            Section(
                title,
                (),
                tuple(GROUP_COLUMNS),
                [[cell(group) for cell in GROUP_COLUMNS.values()] for group in groups],
            )
            for title, groups in tables
        ),
        Section("Judge and ground truth", agreement(report)),
        Section("Gates", _gates(report)),
        Section("Without a verdict", _without_a_verdict(report)),
    ]
    return [section for section in every if section.lines or section.rows]


def rate(value: Rate) -> str:
    """`3 of 4, 75 % (30 to 95 %)`."""
    if value.rate is None or value.low is None or value.high is None:
        return NOTHING
    interval = f"({value.low:.0%} to {value.high:.0%})"
    return f"{value.passed} of {value.total}, {value.rate:.0%} {interval}"


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def _money(value: float) -> str:
    return f"${value:.4f}" if value else "$0"


def _truth(report: CaseReport) -> str:
    """What was measured, and whether that is enough."""
    truth = report.truth
    if truth is None:
        return report.truth_note or ("no policy" if report.truly_passed is False else NOTHING)
    return truth.text


GROUP_COLUMNS: Mapping[str, Callable[[Group], str]] = {
    "": lambda group: group.name,
    "prompts": lambda group: str(group.cases),
    "finished": lambda group: str(group.finished),
    "passed (judge)": lambda group: rate(group.judged),
    "unverified": lambda group: str(group.unverified),
    "ground-truth pass rate": lambda group: rate(group.true),
    "false passes": lambda group: str(group.false_passes),
    "false fails": lambda group: str(group.false_fails),
    "errors": lambda group: str(group.errors),
    "mean score": lambda group: _number(group.mean_score),
    "iterations": lambda group: f"{group.iterations:.1f}",
    "minutes": lambda group: f"{group.minutes:.1f}",
    "tokens": lambda group: f"{group.tokens:,.0f}",
    "cost": lambda group: _money(group.cost_usd),
}
CARD: Mapping[str, Callable[[CaseReport], str]] = {
    "score": lambda report: _number(report.score),
    "not checked": lambda report: ", ".join(report.unchecked_words) or NOTHING,
    "ground truth": _truth,
    "iterations": lambda report: str(report.iterations),
    "minutes": lambda report: f"{report.minutes:.1f}",
    "tokens": lambda report: f"{report.tokens:,}",
    "cost": lambda report: _money(report.cost_usd),
}
CASE_COLUMNS: Mapping[str, Callable[[CaseReport], str]] = {
    "case": lambda report: str(report.case.number),
    "environment": lambda report: report.case.env_id,
    "prompt": lambda report: report.case.instruction,
    "category": lambda report: report.case.category,
    "difficulty": lambda report: report.case.difficulty,
    "outcome": lambda report: OUTCOMES[report.outcome],
    **CARD,
}


def _about(report: BenchmarkReport) -> list[str]:
    """What was run, and how to read it."""
    benchmark = report.benchmark
    options = [f"{name} {value}" for name, value in benchmark.options.items() if value != ""]
    stages = (
        f"{len(benchmark.stages)} stages, each after a mean score of {benchmark.gate_threshold:g}"
        if benchmark.mode == "staged"
        else "flat"
    )
    return [
        (
            f"{len(benchmark.cases)} prompts of {benchmark.suite}, {stages}; "
            f"options: {', '.join(options) or 'defaults'}."
        ),
        (
            "A pass is the session's own: every hard criterion is met on held-out seeds, and every "
            "word of the prompt is measured. The ground truth is "
            "a measurement on the simulator that knows nothing of the judges: the mean over ten "
            "further episodes of the final policy, in plain Gymnasium."
        ),
        (
            "Unverified: the judges passed it, but no criterion measures some words of the "
            "prompt. It does not count as passed, and is not compared with the ground truth."
        ),
        (
            "Rates are over prompts whose session finished, with the 95 % interval by Wilson. A "
            "session that ended with an error counts as not passed and has a column of its own. "
            "Minutes are of the session's own processes."
        ),
    ]


def agreement(report: BenchmarkReport) -> list[str]:
    """Judge against ground truth."""
    counts = report.agreement
    if not counts.compared:
        return ["No prompt has both a verdict and a measurement yet."]
    correlation = "There are too few different values for a rank correlation."
    if counts.rank_correlation is not None:
        correlation = (
            "Rank correlation (Spearman) of the judge's score with the share of the threshold "
            f"that is attained: {counts.rank_correlation:.2f} over {counts.correlated} prompts."
        )
    false_passes = _names(report, counts.false_passes)
    false_fails = _names(report, counts.false_fails)
    return [
        f"Judge and ground truth agree on {counts.agreed} of {counts.compared} prompts.",
        correlation,
        f"False passes (the judge passed, the ground truth is missed): {false_passes}.",
        f"False fails (the ground truth is met, the judge did not pass): {false_fails}.",
        f"Unverified: {_names(report, counts.unverified)}.",
    ]


def _names(report: BenchmarkReport, numbers: Sequence[int]) -> str:
    cases = {each.case.number: each.case for each in report.cases}
    names = [f"{cases[n].env_id} {cases[n].instruction!r}" for n in numbers]
    return f"{len(names)}" + (f" ({'; '.join(names)})" if names else "")


def _without_a_verdict(report: BenchmarkReport) -> list[str]:
    """Cases that do not count, and why; and errors, which do."""
    return [
        f"{each.case.env_id} {each.case.instruction!r}: {OUTCOMES[each.outcome]}"
        + (f" ({' '.join(each.message.split())[:300]})" if each.message else "")
        for each in report.cases
        if each.outcome in ("error", "unfinished", "not_run")
    ]


def _gates(report: BenchmarkReport) -> list[str]:
    lines = []
    for gate in report.gates:
        verdict = "the next one began" if gate.passed else "no further stage was started"
        missing = ", ".join(f"case {number}" for number in gate.missing)
        lines.append(
            f"stage {gate.stage + 1}: mean score {gate.mean_score:.2f} of {len(gate.scores)} "
            f"prompts, threshold {gate.threshold:g}: {verdict}"
            + (f"; without a score, counted as 0: {missing}" if missing else "")
        )
    return lines


# --- Markdown -------------------------------------------------------------------------------------


def markdown(report: BenchmarkReport) -> str:
    """The report as Markdown."""
    rows = [[cell(case) for cell in CASE_COLUMNS.values()] for case in report.cases]
    cases = Section("Prompts", (), tuple(CASE_COLUMNS), rows)
    parts = [f"# Benchmark {_plain(report.benchmark.benchmark_id)}", *map(_plain, _about(report))]
    for section in (*sections(report), cases):
        parts.append(f"## {section.title}")
        if section.lines:
            parts.append("\n".join(f"- {_plain(line)}" for line in section.lines))
        if section.rows:
            cells = ([_plain(cell) for cell in row] for row in section.rows)
            lines = [section.head, ["---"] * len(section.head), *cells]
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts) + "\n"


def _plain(value: str) -> str:
    """Text that means nothing to Markdown and stays on its line."""
    return _MARKDOWN.sub(r"\\\1", " ".join(value.split()))


# --- HTML -----------------------------------------------------------------------------------------


def page(report: BenchmarkReport) -> str:
    """The report as a page."""
    style = (resources.files("p2p.benchmark") / "report.css").read_text(encoding="utf-8")
    title = html.escape(f"Benchmark {report.benchmark.benchmark_id}")
    parts = [
        f"<h1>{title}</h1>",
        *(f"<p>{html.escape(line)}</p>" for line in _about(report)),
        _tiles(report),
    ]
    for section in sections(report)[1:]:
        parts += [f"<h2>{section.title}</h2>"]
        if section.rows:
            parts.append(_table(section))
        elif section.title == "Judge and ground truth":
            legend = "Each dot is a prompt; where judge and ground truth differ it is red."
            lines = _list([*section.lines, legend])
            parts += ['<div class="beside">', _scatter(report), lines, "</div>"]
        else:
            parts.append(_list(section.lines))
    parts += ["<h2>Prompts</h2>", '<div class="cards">', *map(_card, report.cases), "</div>"]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title}</title><style>\n{style}</style></head>\n<body><main>\n"
        + "\n".join(parts)
        + f"\n<footer>made {report.made_at:%Y-%m-%d %H:%M} UTC</footer></main></body></html>\n"
    )


def _tiles(report: BenchmarkReport) -> str:
    group = report.overall
    tiles = [
        ("passed (judge)", rate(group.judged)),
        ("unverified", str(group.unverified)),
        ("ground-truth pass rate", rate(group.true)),
        ("false passes", str(group.false_passes)),
        ("false fails", str(group.false_fails)),
        ("rank correlation", _number(report.agreement.rank_correlation)),
        ("minutes per prompt", f"{group.minutes:.1f}"),
        ("cost per prompt", _money(group.cost_usd)),
    ]
    cells = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        for name, value in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _table(section: Section) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in section.head)
    rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in section.rows)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>"


def _scatter(report: BenchmarkReport) -> str:
    """Each prompt: the share of the ground truth's threshold attained, and the judge's score."""
    far = SIZE - MARGIN
    span = far - 10
    dots = []
    for each in report.cases:
        if each.truth is None or each.score is None:
            continue
        x, y = MARGIN + each.truth.attained * span, far - each.score * span
        colour = "differ" if each.disputed else "agree"
        label = html.escape(f"{each.case.env_id}: {each.case.instruction}")
        circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" class="{colour}">'
        dots.append(f"{circle}<title>{label}</title></circle>")
    middle = f'text-anchor="middle" transform="rotate(-90 14 {SIZE / 2})"'
    return (
        f'<svg viewBox="0 0 {SIZE} {SIZE}" role="img" aria-label="Judge\'s score by ground truth">'
        f'<path d="M{MARGIN} 10V{far}H{SIZE - 10}" class="axis"/>'
        f'<text x="{SIZE / 2}" y="{SIZE - 8}" text-anchor="middle">ground truth attained, 0 to 1'
        f'</text><text x="14" y="{SIZE / 2}" {middle}>judge\'s score, 0 to 1</text>'
        f"{''.join(dots)}</svg>"
    )


def _card(report: CaseReport) -> str:
    case, folder = report.case, _link(report.folder)
    facts = ((name, html.escape(cell(report))) for name, cell in CARD.items())
    rows = "".join(f"<dt>{name}</dt><dd>{fact}</dd>" for name, fact in facts)
    message = f'<p class="said">{html.escape(report.message)}</p>' if report.message else ""
    differ = "judge and ground truth differ"
    mark = f'<span class="differ">{differ}</span>' if report.disputed else ""
    return (
        f'<article class="{report.outcome}"><h3>{html.escape(case.instruction)}</h3>'
        f"<p>{' · '.join(map(html.escape, (case.env_id, case.category, case.difficulty)))}"
        f' · <b class="{report.outcome}">{OUTCOMES[report.outcome]}</b> {mark}</p>'
        f"{_video(report)}<dl>{rows}</dl>{message}"
        f'<p><a href="{folder}/report.md">report</a> · <a href="{folder}/">folder</a></p></article>'
    )


def _video(report: CaseReport) -> str:
    if not report.videos:
        return '<p class="novideo">no video</p>'
    median = next((video for video in report.videos if "median" in video), report.videos[0])
    return (
        f'<video src="{_link(median)}" controls loop muted playsinline preload="metadata"></video>'
    )


def _link(path: str) -> str:
    """A relative link; a name with a colon in it is no address."""
    return html.escape("./" + quote(path))
