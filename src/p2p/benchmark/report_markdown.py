"""report.md: a benchmark's report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from p2p.benchmark import report_text as text
from p2p.benchmark.report import Report

_SPECIAL = re.compile(r"([\\|`*_<>\[\]])")


def markdown(report: Report) -> str:
    """The report, whole."""
    parts = [
        f"# Benchmark {_plain(report.benchmark.benchmark_id)}",
        *map(_plain, text.about(report)),
    ]
    for title, groups in text.tables(report):
        parts += [f"## {title}", _table(text.GROUP_HEAD, map(text.group_row, groups))]
    parts += ["## Judge and truth", _list(text.agreement(report))]
    if found := text.gates(report):
        parts += ["## Gates", _list(found)]
    if found := text.not_finished(report):
        parts += ["## Without a verdict", _list(found)]
    parts += ["## Prompts", _table(text.CASE_HEAD, map(text.case_row, report.cases))]
    return "\n\n".join(parts) + "\n"


def _plain(value: str) -> str:
    """Text that means nothing to Markdown and stays on its line."""
    return _SPECIAL.sub(r"\\\1", " ".join(value.split()))


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_plain(line)}" for line in lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([_plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
