"""The dashboard: served at its addresses, under the content policy, built from its sources."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from p2p.api.app import STATIC
from p2p.session.request import SessionRequest
from p2p.validation import flags_of

FRONTEND = Path(__file__).parents[2] / "frontend"
SINGLE_FILES = (
    "index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts",
)  # fmt: skip


@pytest.mark.parametrize(
    "path", ["/", "/e2e", "/e2e/session_a", "/benchmark/job/j/case/1", "/monitor", "/trash"]
)
def test_page_is_served_at_its_addresses(anybody: TestClient, path: str) -> None:
    answer = anybody.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["cache-control"] == "no-cache"
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_other_addresses_get_404(client: TestClient) -> None:
    assert client.get("/nothing/here").headers["content-type"] == "application/problem+json"
    visited = client.get("/nothing/here", headers={"Accept": "text/html,*/*"})
    assert (visited.status_code, visited.headers["content-type"][:9]) == (404, "text/html")
    assert client.get("/api/nothing").headers["content-type"] == "application/problem+json"


def test_page_assets_exist_and_are_immutable(anybody: TestClient) -> None:
    page = anybody.get("/").text
    needed = re.findall(r'(?:src|href)="(/[^"]+)"', page)
    assert any(path.endswith(".js") for path in needed)
    for path in needed:
        answer = anybody.get(path)
        assert answer.status_code == 200, path
        assert "immutable" in answer.headers["cache-control"]


def test_page_has_no_inline_script_or_style(anybody: TestClient) -> None:
    page = anybody.get("/").text
    assert "<style" not in page
    assert " style=" not in page
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)


def test_files_outside_the_page_are_not_assets(anybody: TestClient) -> None:
    for name in ("..%2findex.html", "..%2f..%2fapp.py", "nothing.js"):
        assert anybody.get(f"/assets/{name}").status_code == 404


def test_the_built_page_is_up_to_date() -> None:
    sources = [
        path.relative_to(FRONTEND).as_posix()
        for path in (FRONTEND / "src").rglob("*")
        if path.is_file() and not re.search(r"\.test\.tsx?$|^schema\.ts$", path.name)
    ]
    digest = hashlib.sha256()
    for name in sorted([*SINGLE_FILES, *sources]):
        digest.update(f"{name}\0".encode() + (FRONTEND / name).read_bytes() + b"\0")
    built = (STATIC / "sources.sha256").read_text().strip()
    assert digest.hexdigest() == built, "the page is older than frontend/: run `make frontend`"


def test_the_form_knows_every_option_of_a_session() -> None:
    text = (FRONTEND / "src" / "lib" / "command.ts").read_text()
    for field, option in flags_of(SessionRequest).items():
        flag = option.name.split("/")[0].removeprefix("--")
        assert f'"{field}"' in text or f"asked.{field}" in text, field
        assert f'--{flag}"' in text or f'"{flag}"' in text, flag
