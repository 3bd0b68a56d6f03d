"""Errors as `application/problem+json` (RFC 9457): what is wrong, and what to do about it."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

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
from p2p.session.endings import SessionBusy
from p2p.settings import redact

if TYPE_CHECKING:
    from fastapi import FastAPI, Request

_logger = logging.getLogger(__name__)
LONGEST_DETAIL = 2000


class Problem(Exception):
    """A request that cannot be answered as asked."""

    def __init__(self, status: int, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.more = more


class NotFound(Problem):
    """What is asked for is not there."""

    def __init__(self, detail: str) -> None:
        super().__init__(404, detail)


class WrongState(Problem):
    """It is there, but this cannot be done to it now."""

    def __init__(self, detail: str) -> None:
        super().__init__(409, detail)


class BadRequest(Problem):
    """The request does not say what it must."""

    def __init__(self, detail: str, **more: Any) -> None:
        super().__init__(422, detail, **more)


_UNANSWERED: tuple[tuple[type[InferenceError], int], ...] = (
    (AuthenticationFailed, 409),
    (BudgetExhausted, 409),
    (RateLimited, 503),
    (ProviderUnavailable, 503),
    (BadReply, 502),
)
"""Anything else is about what was asked: 422."""


class NoAnswer(Problem):
    """A model that was to be asked gave no answer, or could not be asked."""

    def __init__(self, error: InferenceError) -> None:
        status = next((code for kind, code in _UNANSWERED if isinstance(error, kind)), 422)
        super().__init__(status, str(error))


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


def response(status: int, detail: str, **more: Any) -> JSONResponse:
    """The answer for a problem."""
    return JSONResponse(
        {
            "type": "about:blank",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": redact(detail)[:LONGEST_DETAIL],
            **more,
        },
        status_code=status,
        media_type=MEDIA_TYPE,
    )


def install(app: FastAPI) -> None:
    """Answer every error of the app like this."""

    async def of_problem(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, Problem)
        return response(error.status, str(error), **error.more)

    async def of_http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        answer = response(error.status_code, str(error.detail))
        answer.headers.update(error.headers or {})
        return answer

    async def of_request(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        fields = [
            {"field": ".".join(map(str, item["loc"])), "message": item["msg"]}
            for item in error.errors()
        ]
        detail = "; ".join(f"{item['field']}: {item['message']}" for item in fields)
        return response(422, detail, errors=fields)

    async def of_inference(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, InferenceError)
        problem = NoAnswer(error)
        return response(problem.status, str(problem))

    async def of_conflict(_: Request, error: Exception) -> JSONResponse:
        return response(409, str(error))

    async def of_disk(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, OSError)
        _logger.warning("%s: %s", error.filename, error.strerror)
        return response(507, f"the runs folder cannot be used: {error.strerror}")

    async def of_fault(_: Request, error: Exception) -> JSONResponse:
        _logger.error("a request failed", exc_info=error)
        return response(500, "a fault of the server; its log has the details")

    app.add_exception_handler(Problem, of_problem)
    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(RequestValidationError, of_request)
    app.add_exception_handler(InferenceError, of_inference)
    app.add_exception_handler(StoreError, of_conflict)
    app.add_exception_handler(SessionBusy, of_conflict)
    app.add_exception_handler(OSError, of_disk)
    app.add_exception_handler(Exception, of_fault)
