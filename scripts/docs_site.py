"""Hooks of mkdocs: documents link as files of the repository do, and the site follows.

README.md is the home page. A file outside of docs/ that a page links to has a page of its own on
the site, so that no link leads to another host.
"""

from __future__ import annotations

import os.path
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"(^```.*?^```$|^    \S.*$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
LANGUAGES = {".py": "python", ".toml": "toml", ".csv": "text", ".xml": "xml"}
AS_IT_IS = {".md", ".mp4", ".png", ".svg", ".webp"}


def site_path(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"project/{path}" if Path(path).suffix in AS_IT_IS else f"project/{path}.md"


def map_links(text: str, change: Callable[[str], str]) -> str:
    """The text with every relative link outside of code changed."""

    def replace(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        return match[0] if re.match(r"[a-z]+:", target) else change(target) + anchor

    parts = FENCE.split(text)
    parts[::2] = [LINK.sub(replace, part) for part in parts[::2]]
    return "".join(parts)


def linked(path: str, text: str) -> set[str]:
    """Files of the repository that a document at `path` links to."""
    targets: set[str] = set()

    def note(target: str) -> str:
        targets.add(posixpath.normpath(posixpath.join(posixpath.dirname(path), target)))
        return target

    map_links(text, note)
    return targets


def read_page(path: str) -> str:
    """A file of the repository as the text of a page."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    return f"# {path}\n\n````{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}````\n"


def pages_outside() -> set[str]:
    """Files outside of docs/ that the site needs, found by following links."""
    waiting = {"README.md", *(p.relative_to(ROOT).as_posix() for p in ROOT.glob("docs/**/*.md"))}
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        if path.endswith(".md"):
            waiting |= linked(path, read_page(path)) - seen
    return {path for path in seen if not path.startswith("docs/")}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside of docs/."""
    from mkdocs.structure.files import File

    for path in sorted(pages_outside()):
        picture = Path(path).suffix in AS_IT_IS - {".md"}
        content = {"abs_src_path": str(ROOT / path)} if picture else {"content": read_page(path)}
        files.append(File.generated(config, site_path(path), **content))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Turn links between files of the repository into links between pages."""
    own = page.file.src_uri
    if own == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
    paths = {site_path(path): path for path in pages_outside()}
    path = paths.get(own, f"docs/{own}")

    def change(target: str) -> str:
        there = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        return os.path.relpath(site_path(there), posixpath.dirname(own) or ".")

    return map_links(markdown, change)
