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
from docs_site import AS_IT_IS, map_links, pages_outside, read_page, site_path

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


def test_two_files_of_the_repository_have_two_pages() -> None:
    paths = PAGES | pages_outside()
    assert len({site_path(path) for path in paths}) == len(paths)
    assert all(site_path(path).endswith((".md", *AS_IT_IS)) for path in paths)


def test_links_in_code_and_to_other_hosts_stay_as_they_are() -> None:
    text = "[a](b.md#c) `[a](b.md)` [h](https://example.org/)\n```\n[a](b.md)\n```\n![p](q.png)"
    changed = map_links(text, lambda target: f"x/{target}")
    assert changed == (
        "[a](x/b.md#c) `[a](b.md)` [h](https://example.org/)\n```\n[a](b.md)\n```\n![p](x/q.png)"
    )


def test_no_diagram_needs_a_script_to_be_drawn() -> None:
    for path in PAGES | {"README.md", "CONTRIBUTING.md"}:
        assert "```mermaid" not in read_page(path), path


def test_readme_and_first_page_start_with_the_same_commands_without_a_placeholder() -> None:
    pages = (read_page("README.md"), read_page("docs/tutorials/first_policy.md"))
    first, again = (re.search(r"```sh\n(.*?)```", page, re.DOTALL) for page in pages)
    assert first
    assert again
    assert first[1] == again[1]
    assert re.sub(r"#.*", "", first[1]).split() == [
        "cd", "prompt2policy", "make", "demo", ".", ".venv/bin/activate",
    ]  # fmt: skip


GALLERY = ROOT / "docs" / "images" / "gallery"


def test_the_gallery_names_its_pictures_and_they_are_small() -> None:
    entries = json.loads((GALLERY / "gallery.json").read_text())
    pictures = list(GALLERY.glob("*.webp"))
    assert {entry["file"] for entry in entries} == {path.name for path in pictures}
    assert sum(path.stat().st_size for path in pictures) < 3_000_000


@pytest.mark.parametrize("path", ["README.md", "docs/gallery.md"])
def test_pictures_of_behaviours_stand_over_their_prompts(path: str) -> None:
    entries = json.loads((GALLERY / "gallery.json").read_text())
    prompts = {entry["file"]: f"{entry['prompt']}, {entry['env']}" for entry in entries}
    text = (ROOT / path).read_text()
    shown = re.findall(r"!\[([^]]*)\]\([\w/]*images/gallery/([^)]+)\)", text)
    assert len(shown) == 6
    for title, file in shown:
        assert prompts[file] == title
        assert title.rpartition(",")[0] in re.sub(r"!\[[^]]*\]", "", text).lower()


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
