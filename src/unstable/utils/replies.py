"""Bounds the length of replies of other servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator

LONGEST_REPLY = 16 << 20
"""Bytes, as sent and unpacked: several times the longest answer of any model."""
UNREADABLE = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip
"""What clients raise for a body that is no reply: nested too deeply, of other types, no JSON."""


class ReplyTooLong(httpx2.RemoteProtocolError):
    """A reply is longer than any answer can be."""


async def limit_reply(response: httpx2.Response) -> None:
    """End a reply that is too long: a `response` hook for clients of httpx2.

    A hook, because a transport of one's own would switch off the environment's proxies.
    """
    stream = response.stream
    assert isinstance(stream, httpx2.AsyncByteStream)
    sent = httpx2.Response(200, headers=response.headers, stream=_Limited(stream, stream))
    response.stream = _Limited(sent.aiter_bytes(), stream)
    for name in ("content-encoding", "content-length"):  # it is unpacked now
        response.headers.pop(name, None)


class _Limited(httpx2.AsyncByteStream):
    def __init__(self, chunks: AsyncIterable[bytes], connection: httpx2.AsyncByteStream) -> None:
        self._chunks = chunks
        self._connection = connection

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length = 0
        async for chunk in self._chunks:
            length += len(chunk)
            if length > LONGEST_REPLY:
                raise ReplyTooLong(f"the reply is longer than {LONGEST_REPLY >> 20} MiB")
            yield chunk

    async def aclose(self) -> None:
        await self._connection.aclose()
