"""Take the pictures of the dashboard that the documents show, and of every page to look through.

    python scripts/screenshots.py                # what the documents show, into docs/images
    python scripts/screenshots.py --all FOLDER   # every page in both themes, and some as on a phone

Starts `p2p serve --demo` at a free port and looks at it in Debian's Chromium
(scripts/browser_packages.sh), so that the pictures are of what comes with the package.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from PIL import Image
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page

IMAGES = Path(__file__).parents[1] / "docs" / "images"
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
DESK, PHONE = 1440, 390
QUALITY = 82
MOVES = 4
SHOW_VIDEOS = """
async () => {
  const videos = [...document.querySelectorAll("video")];
  for (const video of videos) video.scrollIntoView();
  await Promise.all(videos.map((video) => new Promise((resolve) => {
    if (video.readyState >= 2) resolve();
    else { video.preload = "auto"; video.onloadeddata = resolve; }
  })));
  const next = () => new Promise(requestAnimationFrame);
  for (const time of document.querySelectorAll(".player input[type=range]")) {
    while (videos.length > 0 && Number(time.max) <= 1) await next();
  }
  const times = document.querySelectorAll(".player input[type=range]");
  const arrived = videos.map((video) => new Promise((resolve) => {
    video.onseeked = () => requestAnimationFrame(resolve);
    setTimeout(resolve, 3000);
  }));
  for (const video of videos) {
    video.pause();
    video.currentTime = video.duration * 0.65;
  }
  const write = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
  for (const time of times) {
    write.call(time, time.max * 0.65);
    time.dispatchEvent(new Event("input", { bubbles: true }));
  }
  await Promise.all(arrived);
  document.activeElement.blur();
  scrollTo(0, 0);
}
"""
"""Pictures from the middle of the episodes, not from their first moment, by the page's means."""
Theme = Literal["light", "dark"]


@dataclass(frozen=True)
class Shown:
    """A page: where it is, and what is done there before its picture is taken."""

    path: str
    ready: str = "main h1"
    """What is there when all of it is."""
    act: Callable[[Page], None] | None = None


@dataclass(frozen=True)
class Picture:
    """A picture for the documents: the top of a page, or what begins at an element."""

    page: str
    height: int
    theme: Theme = "light"
    begin: str = ""


DOCUMENTS = {
    "dashboard-home": Picture("sessions", 900),
    "dashboard-passed": Picture("session", 1310),
    "dashboard-session": Picture("session-revised", 1270),
    "dashboard-new": Picture("new", 1120),
    "dashboard-training": Picture("session-training", 1000, "dark", begin="[role=tablist]"),
    "dashboard-compare": Picture("compare", 1100),
    "dashboard-benchmark": Picture("benchmark", 1080),
    "dashboard-selfplay": Picture("self-play-run", 860),
    "dashboard-game": Picture("self-play-run", 760, begin=".columns.wide-first"),
}
ON_A_PHONE = ("sessions", "new", "session-revised", "session-training", "compare", "benchmark",
              "case", "self-play-run", "monitor")  # fmt: skip


def main() -> None:
    """Take them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    with demo_server() as (address, token), sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--disable-gpu", "--no-sandbox"]
        )
        pages = all_pages(browser, address, token)
        if given.all is None:
            for name, picture in DOCUMENTS.items():
                page = visit(browser, f"{address}/?token={token}", picture.theme, DESK)
                data = top_of(page, address, pages[picture.page], picture)
                with Image.open(io.BytesIO(data)) as image:
                    image.save(IMAGES / f"{name}.webp", quality=QUALITY, method=6)
                page.context.close()
        else:
            given.all.mkdir(parents=True, exist_ok=True)
            entrance = f"{address}/?token={token}"
            look_through(browser, address, entrance, pages, given.all)
        browser.close()


@contextmanager
def demo_server() -> Iterator[tuple[str, str]]:
    """`p2p serve --demo`: its address and its token."""
    token = secrets.token_urlsafe(16)
    process = subprocess.Popen(
        [sys.executable, "-m", "p2p.cli", "serve", "--demo", "--port", "0"],
        env={**os.environ, "P2P_TOKEN": token},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = next(match for line in process.stdout if (match := ADDRESS.search(line)))
        yield found[0], token
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def all_pages(browser: Browser, address: str, token: str) -> dict[str, Shown]:
    """Every page there is, of what the demo has."""
    context = browser.new_context(extra_http_headers={"Authorization": f"Bearer {token}"})

    def ask(path: str) -> Any:
        return context.request.get(address + path).json()

    sessions = sorted(
        ask("/api/sessions?cases=false"),
        key=lambda each: (int(each["iterations"]), -float(each["best_score"] or 0)),
    )
    at_once, revised = (each["session_id"] for each in (sessions[0], sessions[-1]))
    benchmark = ask("/api/benchmarks")[0]["benchmark_id"]
    case = ask(f"/api/benchmarks/{benchmark}/cases")[0]["case"]["number"]
    run = ask("/api/selfplay")[0]["run_id"]
    games = ask(f"/api/selfplay/{run}/games")
    game = max(games, key=lambda each: (won(each), each["turns"] > MOVES, each["time"]))["id"]
    context.close()
    tabs = {
        "judgment": "[role=tabpanel] table", "reward": ".katex", "training": ".charts canvas",
        "lessons": "[role=tabpanel]", "events": "[role=tabpanel]",
    }  # fmt: skip
    return {
        "sessions": Shown("/e2e", ".session-cards li"),
        "new": Shown("/e2e/new", act=fill_in),
        "session": Shown(f"/e2e/{at_once}", "video"),
        "session-revised": Shown(f"/e2e/{revised}", "video"),
        **{
            f"session-{tab}": Shown(f"/e2e/{revised}?tab={tab}", ready)
            for tab, ready in tabs.items()
        },
        "compare": Shown(f"/compare?of={revised}:1&of={revised}:2", "video"),
        "benchmarks": Shown("/benchmark", ".interval"),
        "benchmark": Shown(f"/benchmark/{benchmark}", "video"),
        "case": Shown(f"/benchmark/job/{benchmark}/case/{case}", "video"),
        "self-play": Shown("/self-play", "main li"),
        "self-play-run": Shown(f"/self-play/{run}?game={game}", ".stepper", some_moves_on),
        "monitor": Shown("/monitor", "main table"),
        "trash": Shown("/trash"),
    }


def won(game: dict[str, Any]) -> bool:
    """Whether the learner did."""
    (seat,) = (str(player["seat"]) for player in game["players"] if player["learner"])
    return bool((game["rewards"][seat] or 0) > 0)


def fill_in(page: Page) -> None:
    """A prompt and an environment; the built-in author proposes criteria."""
    page.get_by_role("textbox", name="Prompt").fill("run forward fast")
    page.get_by_role("radio", name="HalfCheetah").check(force=True)
    page.get_by_label("Model", exact=True).fill("builtin")
    page.get_by_role("button", name="Propose criteria").click()
    page.get_by_role("group", name="Criteria").get_by_label("Threshold").first.wait_for()


def some_moves_on(page: Page) -> None:
    """In the middle of a game."""
    for _ in range(MOVES):
        page.get_by_role("button", name="Next →").click()


def visit(browser: Browser, entrance: str, theme: Theme, width: int, height: int = 900) -> Page:
    """Somebody who has opened the printed address."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(entrance)
    page.get_by_role("heading", level=1).wait_for()
    return page


def open_page(page: Page, address: str, shown: Shown) -> None:
    """All of it, as it stands still."""
    page.goto(address + shown.path)
    page.locator(shown.ready).first.wait_for()
    page.get_by_text("Loading …").first.wait_for(state="detached")
    if shown.act is not None:
        shown.act(page)
    page.evaluate(SHOW_VIDEOS)


def top_of(page: Page, address: str, shown: Shown, picture: Picture) -> bytes:
    """The part of a page that a picture shows."""
    page.set_viewport_size({"width": DESK, "height": picture.height})
    open_page(page, address, shown)
    if picture.begin:
        page.locator(picture.begin).first.evaluate("each => each.scrollIntoView()")
    return page.screenshot()


def look_through(
    browser: Browser, address: str, entrance: str, pages: dict[str, Shown], folder: Path
) -> None:
    """Every page, whole."""
    themes: tuple[Theme, Theme] = ("light", "dark")
    for width, names in ((DESK, tuple(pages)), (PHONE, ON_A_PHONE)):
        for theme in themes:
            page = visit(browser, entrance, theme, width)
            for name in names:
                open_page(page, address, pages[name])
                page.screenshot(path=folder / f"{name}-{theme}-{width}.png", full_page=True)
            page.context.close()


if __name__ == "__main__":
    main()
