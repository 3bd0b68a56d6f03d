"""Errors as `application/problem+json` (RFC 9457): what is wrong, and what to do about it."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from p2p.inference.question import (
    AuthenticationFailed,
    BadReply,
    BudgetExhausted,
    InferenceError,
    ProviderUnavailable,
    RateLimited,
)
from p2p.scheduler.store import StoreError
from p2p.session.stopping import SessionBusy
from p2p.settings import redact

if TYPE_CHECKING:
    from fastapi import FastAPI, Request

_logger = logging.getLogger(__name__)
LONGEST_DETAIL = 2000
MEDIA_TYPE = "application/problem+json"
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "what is wrong, and what to do about it (RFC 9457)",
        "content": {
            MEDIA_TYPE: {
                "schema": {
                    "type": "object",
                    "properties": {
                        "type": {"type": "string"},
                        "title": {"type": "string"},
                        "status": {"type": "integer"},
                        "detail": {"type": "string"},
                        "errors": {"type": "array", "items": {"type": "object"}},
                    },
                    "required": ["type", "title", "status", "detail"],
                }
            }
        },
    }
}
"""For every route: how its errors look."""


class Problem(Exception):
    """A request that cannot be answered as asked."""

    status: ClassVar[int]


class ResourceNotFound(Problem):
    """The resource does not exist."""

    status = 404


class WrongState(Problem):
    """The state of the resource does not allow the request."""

    status = 409


class BadRequest(Problem):
    """The request is incomplete or contradictory."""

    status = 422


class Unavailable(Problem):
    """Another machine does not answer."""

    status = 503


_INFERENCE: dict[type[InferenceError], int] = {
    AuthenticationFailed: 409,
    BudgetExhausted: 409,
    RateLimited: 503,
    ProviderUnavailable: 503,
    BadReply: 502,
}
"""Any other error of a model is about what was asked: 422."""


def response(status: int, detail: str, **more: Any) -> JSONResponse:
    return JSONResponse(
        {
            "type": "about:blank",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": _replace_half_characters(redact(detail)[:LONGEST_DETAIL]),
            **more,
        },
        status_code=status,
        media_type=MEDIA_TYPE,
    )


def _replace_half_characters(text: str) -> str:
    """The text, a question mark for every half of a character that a request had."""
    return text.encode(errors="replace").decode()


async def answer(_: Request, error: Exception) -> JSONResponse:
    """The problem that an error of a route is."""
    status, detail, more = 500, "internal error; the server's log has the details", {}
    match error:
        case Problem():
            status, detail = error.status, str(error)
        case RequestValidationError():
            fields = [
                {"field": _replace_half_characters(".".join(map(str, item["loc"]))),
                 "message": _replace_half_characters(item["msg"])}
                for item in error.errors()
            ]  # fmt: skip
            detail = "; ".join(f"{item['field']}: {item['message']}" for item in fields)
            status, more = 422, {"errors": fields}
        case InferenceError():
            kinds = (code for kind, code in _INFERENCE.items() if isinstance(error, kind))
            status, detail = next(kinds, 422), str(error)
        case StoreError() | SessionBusy():
            status, detail = 409, str(error)
        case HTTPException():
            status, detail = error.status_code, str(error.detail)
        case OSError():
            _logger.warning("%s: %s", error.filename, error.strerror)
            status, detail = 507, f"the runs folder cannot be used: {error.strerror}"
        case _:
            _logger.error("a request failed", exc_info=error)
    problem = response(status, detail, **more)
    problem.headers.update(getattr(error, "headers", None) or {})
    return problem


def install(app: FastAPI) -> None:
    """Answer every error of the app like this."""
    for kind in (
        Problem, HTTPException, RequestValidationError, InferenceError, StoreError, SessionBusy,
        OSError, Exception,
    ):  # fmt: skip
        app.add_exception_handler(kind, answer)
