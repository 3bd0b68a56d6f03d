"""The documents as a site: every page is reached, and it builds without a warning."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from docs_site import map_links, site_path

ROOT = Path(__file__).parents[1]
SETTINGS = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
PAGES = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")}


def named(nav: object) -> list[str]:
    """The pages of a navigation, from the top."""
    if isinstance(nav, str):
        return [nav]
    entries = nav if isinstance(nav, list) else list(nav.values())  # type: ignore[attr-defined]
    return [page for entry in entries for page in named(entry)]


def test_every_document_is_in_the_navigation_once() -> None:
    pages = named(SETTINGS["nav"])
    assert len(pages) == len(set(pages))
    own = {page for page in pages if not page.startswith("project/")}
    assert own == {site_path(path) for path in (*PAGES, "README.md")}


def test_links_in_code_and_to_other_hosts_stay_as_they_are() -> None:
    text = "[a](b.md#c) `[a](b.md)` [h](https://example.org/)\n```\n[a](b.md)\n```\n![p](q.png)"
    changed = map_links(text, lambda target: f"x/{target}")
    assert changed == (
        "[a](x/b.md#c) `[a](b.md)` [h](https://example.org/)\n```\n[a](b.md)\n```\n![p](x/q.png)"
    )


GALLERY = ROOT / "docs" / "images" / "gallery"


def test_the_gallery_names_its_pictures_and_they_are_small() -> None:
    entries = json.loads((GALLERY / "gallery.json").read_text())
    pictures = list(GALLERY.glob("*.webp"))
    assert {entry["file"] for entry in entries} == {path.name for path in pictures}
    assert sum(path.stat().st_size for path in pictures) < 3_000_000


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_asks_no_other_host(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="`make docs` installs it")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    done = subprocess.run(
        build, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        loaded = re.findall(
            r'<(?:script|img|iframe|source)[^>]*\ssrc="([^"]*)"|<link[^>]*\shref="([^"]*)"',
            page.read_text(),
        )
        foreign = [a or b for a, b in loaded if re.match(r"(?:https?:)?//", a or b)]
        assert foreign == [], page
    assert (tmp_path / "search" / "search_index.js").stat().st_size > 100_000
