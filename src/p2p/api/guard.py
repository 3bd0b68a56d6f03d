"""Who may come in: every request to the API passes here before anything else sees it.

Covers: other users of the machine and other machines (a token), web pages in the same browser
(cookie with SameSite=Strict, Origin check on writes), other names for our address (Host check),
large bodies. Does not cover: a process of the same user, which can read the runs folder anyway.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from p2p.api.problems import response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "p2p_token"
MAX_BODY = 1_000_000
UPLOADS = {"/api/models": 64 << 20}
"""Paths that take larger bodies, in bytes."""
READS = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Guard:
    """An ASGI app in front of another.

    Args:
        app: what is guarded.
        token: what a request must show, as a cookie, a bearer token, or once in the address.
        hosts: names by which the server may be called, without the port.
        origins: other sites whose pages may call; none unless somebody says so.
        protected: the start of the paths that need the token; the page itself holds no secret.
    """

    app: ASGIApp
    token: str
    hosts: tuple[str, ...] = LOOPBACK
    origins: tuple[str, ...] = ()
    protected: tuple[str, ...] = ("/api", "/openapi.json", "/docs")
    _cookie: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """What the browser keeps: it opens nothing once this server has ended."""

    def __post_init__(self) -> None:
        """An empty token would let everybody in."""
        if not self.token:
            raise ValueError("a server needs a token")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = self._refuse(scope)
        if refused is not None:
            await refused(scope, receive, send_with_headers)
            return
        limit = UPLOADS.get(scope["path"], MAX_BODY)
        await self.app(scope, _limit_body(receive, limit), send_with_headers)

    def _refuse(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host, length = headers.get("host", ""), headers.get("content-length", "0")
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        if "*" not in self.hosts and name not in self.hosts:
            return response(421, f"this server is not {name!r}: open it by {self.hosts[0]}")
        limit = UPLOADS.get(scope["path"], MAX_BODY)
        if not length.isdecimal() or len(length) > 18 or int(length) > limit:
            return response(413, f"more than {limit:,} bytes")
        if opened := self._exchange_token(scope, host):
            return opened
        return self._check_access(scope, headers, host)

    def _check_access(self, scope: Scope, headers: Headers, host: str) -> Response | None:
        if not scope["path"].startswith(self.protected):
            return None
        by_bearer = self._is_token(headers.get("authorization", "").removeprefix("Bearer "))
        if not by_bearer and not self._has_cookie(headers):
            return response(401, "open the address that `p2p serve` has printed, or send the token")
        if scope["method"] not in READS and not self._may_write(headers, host, by_bearer):
            return response(403, "a page of another site may not do this")
        return None

    def _may_write(self, headers: Headers, host: str, by_bearer: bool) -> bool:
        origin = headers.get("origin")
        if origin is None:  # no browser, or one too old to say where the page is from
            return by_bearer or headers.get("sec-fetch-site") in ("same-origin", "none")
        return origin in self.origins or _netloc(origin) == host

    def _exchange_token(self, scope: Scope, host: str) -> Response | None:
        """Change the token in an address for a cookie, so that it does not stay in the history."""
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        if scope["method"] != "GET" or "token" not in query:
            return None
        if not self._is_token(query.pop("token")):
            return response(401, "this is not the token of this server; it is new at every start")
        path = "/" + scope["path"].lstrip("/")
        answer = RedirectResponse(path + (f"?{urlencode(query)}" if query else ""), 303)
        answer.set_cookie(self._cookie_name(host), self._cookie, httponly=True, samesite="strict")
        return answer

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def _has_cookie(self, headers: Headers) -> bool:
        try:
            jar = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        kept = jar.get(self._cookie_name(headers.get("host", "")))
        return kept is not None and hmac.compare_digest(kept.value.encode(), self._cookie.encode())

    @staticmethod
    def _cookie_name(host: str) -> str:
        """Cookies do not tell ports apart: servers beside each other need names of their own."""
        return f"{COOKIE}_{host.rpartition(':')[2]}" if host[-1:].isdigit() else COOKIE


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # such as http://[
        return None


def _limit_body(receive: Receive, limit: int) -> Receive:
    """The body, up to its limit, also where no length was said."""
    read = 0

    async def receive_bounded() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > limit:
            raise HTTPException(413, f"more than {limit:,} bytes")
        return message

    return receive_bounded


def new_token() -> str:
    """Return a new random token."""
    return secrets.token_urlsafe(32)
