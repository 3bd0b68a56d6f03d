"""The app: `uvicorn p2p.api.app:app`, or `p2p serve`, which also opens the page."""

from __future__ import annotations

import logging
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI

from p2p import __version__
from p2p.api import page, problems
from p2p.api.guard import LOOPBACK, Guard, new_token
from p2p.api.house import House
from p2p.api.routes import (
    analyzing,
    benchmarks,
    catalogue,
    events,
    iterations,
    jobs,
    proposing,
    selfplay,
    sessions,
    starting,
    trash,
    vlm,
)
from p2p.settings import get_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PARTS = (
    sessions, starting, proposing, iterations, events, analyzing, benchmarks, jobs, selfplay,
    catalogue, vlm, trash, page,
)  # fmt: skip


def create_api(runs_dir: Path | None = None, outputs_dir: Path | None = None) -> FastAPI:
    """The routes over a runs folder, without the guard: for whoever puts one in front."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        runs = (runs_dir or get_settings().runs_dir).absolute()
        house = House(runs, (outputs_dir or Path("outputs")).absolute())
        house.open()
        app.state.house = house
        yield
        house.close()

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
    for part in PARTS:
        api.include_router(part.router)
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


def __getattr__(name: str) -> Guard:
    """`app`, made when somebody asks for it: its token is P2P_TOKEN, or new and in the log."""
    if name != "app":
        raise AttributeError(name)
    token = os.environ.get("P2P_TOKEN") or new_token()
    if "P2P_TOKEN" not in os.environ:
        logging.getLogger("uvicorn.error").info("the token of this server: %s", token)
    return create_app(token=token)
