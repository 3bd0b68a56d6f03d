"""How long it takes until a list of 1,000 sessions can be read."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest
from shown_runs import SESSION

if TYPE_CHECKING:
    from pathlib import Path

    from visiting import Visitor

pytestmark = pytest.mark.slow
SESSIONS = 1000
FIRST_ROW_MS = """
() => new Promise((resolve) => {
  const look = () => {
    if (document.querySelector(".session-cards li")) resolve(performance.now());
    else requestAnimationFrame(look);
  };
  look();
})
"""
ALL = re.compile(rf"1 to 48 of {SESSIONS // 1000},\d\d\d")
PAINTED_MS = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


def test_a_thousand_sessions_are_listed(visitor: Visitor, runs: Path) -> None:
    for number in range(SESSIONS):
        folder = runs / f"session_20250101_000000_{number:08x}"
        folder.mkdir()
        for name in ("session.json", "intent.json", "status.json", "result.json"):
            text = (runs / SESSION / name).read_text()
            (folder / name).write_text(text.replace(SESSION, folder.name))
    try:
        page = visitor.open("/e2e")
        page.get_by_text(ALL).wait_for()
        times = []
        for _ in range(3):
            visitor.open("/e2e")
            shown = page.evaluate(FIRST_ROW_MS)
            page.get_by_text(ALL).wait_for()
            times.append((round(page.evaluate(PAINTED_MS)), round(shown)))
        print(f"{SESSIONS} sessions: (first paint, first row) in ms: {times}")
    finally:
        for folder in runs.glob("session_20250101_*"):
            shutil.rmtree(folder)
