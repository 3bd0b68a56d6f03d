"""The app: `uvicorn p2p.api.app:app`, or `p2p serve`, which also opens the page."""

from __future__ import annotations

import logging
import os
import shutil
import tarfile
import tempfile
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI
from fastapi.responses import FileResponse

from p2p.api import (
    benchmarks,
    catalogue,
    iterations,
    jobs,
    models,
    problems,
    selfplay,
    sessions,
    trash,
)
from p2p.api.guard import LOOPBACK, Guard, new_token
from p2p.api.state import AppState
from p2p.scheduler.service import is_running
from p2p.scheduler.store import Store, this_machine
from p2p.settings import get_settings
from p2p.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fastapi import Request
    from starlette.responses import Response

ROUTES = (sessions, models, iterations, benchmarks, jobs, selfplay, catalogue, trash)
STATIC = Path(__file__).parent / "static"
PAGES = (
    "/",
    "/e2e",
    "/e2e/{session}",
    "/e2e/{session}/label",
    "/compare",
    "/benchmark",
    "/benchmark/{benchmark}",
    "/benchmark/job/{job}",
    "/benchmark/job/{job}/case/{case}",
    "/monitor",
    "/trash",
    "/self-play",
    "/self-play/{run}",
)
"""The page's own addresses: all of them are show_page.html, which looks at the address itself."""
CACHED_FOR_EVER = "public, max-age=31536000, immutable"
"""An get_asset has the digest of its content in its name."""
RECORDING = Path(__file__).parent / "demo.tar.xz"
"""Made by scripts/record_demo.py: the folders runs/ and outputs/."""
page = APIRouter(include_in_schema=False)


def create_api(runs_dir: Path | None = None, outputs_dir: Path | None = None) -> FastAPI:
    """The routes over a runs folder, without the guard: for whoever puts one in front."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        runs = (runs_dir or get_settings().runs_dir).absolute()
        state = AppState(runs, (outputs_dir or Path("outputs")).absolute())
        state.open()
        app.state.p2p = state
        yield
        state.close()

    api = FastAPI(
        title="Prompt2Policy",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        responses=problems.DOCUMENTED,
    )
    problems.install(api)
    api.add_exception_handler(404, _answer_not_found)
    for router in (*(module.router for module in ROUTES), page):
        api.include_router(router)
    return api


def create_app(
    runs_dir: Path | None = None,
    outputs_dir: Path | None = None,
    *,
    token: str,
    hosts: tuple[str, ...] = LOOPBACK,
    origins: tuple[str, ...] = (),
) -> Guard:
    """The whole server: the routes behind the guard."""
    return Guard(create_api(runs_dir, outputs_dir), token, hosts, origins)


@page.get("/assets/{name}")
def get_asset(name: str) -> FileResponse:
    """A script, style or font of the page."""
    if name not in {path.name for path in (STATIC / "assets").iterdir()}:
        raise problems.ResourceNotFound(f"the page has no {name!r}: reload it")
    return FileResponse(STATIC / "assets" / name, headers={"Cache-Control": CACHED_FOR_EVER})


def _send_index(status_code: int) -> FileResponse:
    return FileResponse(STATIC / "index.html", status_code, headers={"Cache-Control": "no-cache"})


def show_page() -> FileResponse:
    return _send_index(200)


async def _answer_not_found(request: Request, error: Exception) -> Response:
    """People get the page, which says so and where to go; scripts get what they always do."""
    is_visit = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    if is_visit and not request.url.path.startswith("/api/"):
        return _send_index(404)
    return await problems.answer(request, error)


for address in PAGES:
    page.add_api_route(address, show_page)


def __getattr__(name: str) -> Guard:
    """`app`, made when somebody asks for it: its token is P2P_TOKEN, or new and in the log."""
    if name != "app":
        raise AttributeError(name)
    token = os.environ.get("P2P_TOKEN") or new_token()
    if "P2P_TOKEN" not in os.environ:
        logging.getLogger("uvicorn.error").info("the token of this server: %s", token)
    return create_app(token=token)


@contextmanager
def demo_folders() -> Iterator[tuple[Path, Path]]:
    """A runs folder and an outputs folder with finished work in them, both to be written to.

    They are removed in the end, unless what was started there still goes on.
    """
    folder = Path(tempfile.mkdtemp(prefix="p2p-demo-"))
    runs, outputs = folder / "runs", folder / "outputs"
    try:
        with tarfile.open(RECORDING) as archive:
            archive.extractall(folder, filter="data")
        with closing(Store(runs)) as store:  # its jobs ran elsewhere; what is started runs here
            store.add_node(this_machine(), replace=True)
        yield runs, outputs
    finally:
        if not is_running(runs):
            shutil.rmtree(folder, ignore_errors=True)
