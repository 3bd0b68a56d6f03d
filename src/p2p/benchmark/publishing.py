"""The report's files: report.json, report.md and report.html in the benchmark's folder."""

from __future__ import annotations

from pathlib import Path

from p2p.benchmark.report import Report
from p2p.benchmark.report_html import html
from p2p.benchmark.report_markdown import markdown
from p2p.files import save_model, write_text


def publish(report: Report, folder: Path) -> tuple[Path, ...]:
    """Write them; returns where they are. Links in the page are relative to the folder."""
    files = tuple(folder / f"report.{kind}" for kind in ("md", "html", "json"))
    write_text(files[0], markdown(report))
    write_text(files[1], html(report))
    save_model(files[2], report)
    return files
