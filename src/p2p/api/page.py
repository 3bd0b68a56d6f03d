"""The dashboard: the built page that lies in `static/`, and the addresses it answers to."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

from p2p.api.problems import NotFound

router = APIRouter(include_in_schema=False)
STATIC = Path(__file__).parent / "static"
PAGES = (
    "/",
    "/e2e",
    "/e2e/{session}",
    "/benchmark",
    "/benchmark/{benchmark}",
    "/benchmark/job/{job}",
    "/benchmark/job/{job}/case/{case}",
    "/monitor",
    "/trash",
    "/self-play",
    "/self-play/{run}",
)
"""The page's own addresses: all of them are index.html, which looks at the address itself."""
FOR_EVER = "public, max-age=31536000, immutable"
"""An asset has the digest of its content in its name."""


@router.get("/assets/{name}")
def asset(name: str) -> FileResponse:
    """A script, style or font of the page."""
    if name not in {path.name for path in (STATIC / "assets").iterdir()}:
        raise NotFound(f"the page has no {name!r}: reload it")
    return FileResponse(STATIC / "assets" / name, headers={"Cache-Control": FOR_EVER})


def page() -> FileResponse:
    """The page, at each of its addresses."""
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


for address in PAGES:
    router.add_api_route(address, page)
