"""The dashboard as a person sees it, in Textual's own harness."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Static, TabbedContent

from unstable import TerminalInterface
from unstable.dashboard import Curve, RatingRow, SourceError, View
from unstable.terminal_interface import Dashboard
from unstable.trackers import Tracker

VIEW = View(
    "demo", 7, curves=(Curve("loss", (3.0, 2.0, 1.0)),),
    ratings=tuple(RatingRow(f"ckpt-{i}", 25.0 + i, 2.0, active=True) for i in range(60)),
    latest_game="a [bold]game[/]",
)  # fmt: skip


class Scripted:
    """Gives views, or raises, one after the other; the last one for ever."""

    def __init__(self, *answers: View | Exception) -> None:
        self._answers = list(answers)

    def fetch(self) -> View:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def until(pilot: Pilot[Any], holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await pilot.pause(0.02)


def text(app: Dashboard, selector: str) -> str:
    widget = app.query_one(selector)
    return "\n".join(strip.text for strip in widget.render_lines(widget.size.region))


def in_dashboard(app: Dashboard, size: tuple[int, int], check: Any) -> None:
    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await check(pilot)

    asyncio.run(run())


@pytest.mark.parametrize("size", [(40, 12), (120, 40)])
def test_every_panel_has_its_place_at_any_size(size):
    async def check(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "demo" in text(app, "#headline"))
        assert app.query_one("#headline").region.y == 0
        for key, ids in (
            ("1", ("learner", "engines", "evaluation", "games")),
            ("2", ("ratings", "matches", "exploration")),
            ("3", ("game",)),
        ):
            await pilot.press(key)
            await pilot.pause()
            for panel_id in ids:
                region = app.query_one(f"#{panel_id}").region
                assert region.area > 0
                assert app.screen.region.contains_region(region)

    app = Dashboard(Scripted(VIEW), refresh=60.0)
    in_dashboard(app, size, check)


def test_keys_change_tabs_and_leave():
    async def check(pilot: Pilot[Any]) -> None:
        tabs = app.query_one(TabbedContent)
        for key, tab in (
            ("right", "players"), ("right", "game"), ("right", "run"), ("left", "game"),
            ("2", "players"),
        ):  # fmt: skip
            await pilot.press(key)
            await pilot.pause()
            assert tabs.active == tab
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)

    app = Dashboard(Scripted(VIEW), refresh=60.0)
    in_dashboard(app, (80, 24), check)
    assert app.return_code == 0


def test_a_tracker_that_is_gone_is_said_and_the_last_view_stays():
    async def check(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "the tracker is gone" in text(app, "#headline"))
        assert "step 7" in text(app, "#headline")
        assert "loss" in text(app, "#learner Static")

    app = Dashboard(Scripted(VIEW, SourceError("the tracker is gone")), refresh=0.05)
    in_dashboard(app, (100, 30), check)


def test_games_are_shown_as_they_are_without_markup():
    async def check(pilot: Pilot[Any]) -> None:
        await pilot.press("3")
        await until(pilot, lambda: "a [bold]game[/]" in text(app, "#game Static"))

    app = Dashboard(Scripted(VIEW), refresh=60.0)
    in_dashboard(app, (80, 24), check)


def test_a_source_that_hangs_keeps_nobody():
    release = threading.Event()

    class Hanging(Scripted):
        def fetch(self) -> View:
            release.wait(60)
            return VIEW

    async def check(pilot: Pilot[Any]) -> None:
        assert "waiting" in text(app, "#headline")
        await pilot.press("2")
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)

    app = Dashboard(Hanging(VIEW))
    in_dashboard(app, (80, 24), check)
    release.set()


def test_the_interface_of_a_live_tracker_follows_it(tmp_path):
    tracker = Tracker("demo", run_dir=tmp_path)
    interface = TerminalInterface(tracker)

    async def check(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "step 0" in text(app, "#headline"))
        tracker.log_learner({"step": 5, "loss": 0.5})
        await until(pilot, lambda: "step 5" in text(app, "#headline"))
        assert isinstance(app.query_one("#headline"), Static)

    app = Dashboard(interface.source, refresh=0.05)
    in_dashboard(app, (80, 24), check)
    assert interface.view().step == 5


def test_without_a_terminal_the_interface_prints_once(tmp_path, capsys):
    TerminalInterface(Tracker("demo", run_dir=tmp_path)).run()
    assert "demo  step 0" in capsys.readouterr().out
