"""Models behind any OpenAI-compatible chat endpoint, as opponents."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from unstable.engines.protocol import EngineError, Sampling

if TYPE_CHECKING:
    import httpx2

OPENROUTER = "https://openrouter.ai/api/v1"
OPENAI = "https://api.openai.com/v1"
RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
"""What may be otherwise the next time."""
FIRST_WAIT = 0.5
LONGEST_WAIT = 60.0
MAX_CONNECTIONS = 64


@dataclass(frozen=True)
class RemoteReply:
    text: str
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    """None: the endpoint does not say."""


class _Again(Exception):
    """It may work the next time."""

    def __init__(self, what: str, wait: float | None = None) -> None:
        super().__init__(what)
        self.wait = wait


class RemoteModel:
    """Asks a model; several requests at a time.

    The endpoint is OpenRouter if there is an OPENROUTER_API_KEY, else OPENAI_BASE_URL with
    OPENAI_API_KEY. Keys are read from the environment and appear nowhere else.

    Args:
        name: the model, as the endpoint calls it.
        base_url: another endpoint, used with OPENAI_API_KEY.
        timeout: seconds for one try.
        tries: how often at most.

    Raises:
        EngineError: there is neither a key nor an address.
    """

    def __init__(
        self, name: str, *, base_url: str | None = None, timeout: float = 60.0, tries: int = 5
    ) -> None:
        self.name = name
        self.timeout = timeout
        self.tries = tries
        self.url, self._key = _endpoint(name, base_url)
        self.requests = self.input_tokens = self.output_tokens = 0
        self.cost_usd = 0.0
        """Of all answers that came with their cost."""
        self._random = random.Random()
        self._client: tuple[asyncio.AbstractEventLoop, httpx2.AsyncClient] | None = None

    async def ask(self, messages: Sequence[Mapping[str, str]], sampling: Sampling) -> RemoteReply:
        """Get the next message of a chat.

        Raises:
            EngineError: the endpoint refused, or did not answer however often it was asked.
        """
        body = self._body(messages, sampling)
        for number in range(1, self.tries + 1):
            try:
                reply = await self._try(body)
            except _Again as error:
                if number == self.tries:
                    raise EngineError(f"{self.name}: {error}, {number} times") from error
                await asyncio.sleep(self._wait(number, error.wait))
            else:
                self.requests += 1
                self.input_tokens += reply.input_tokens
                self.output_tokens += reply.output_tokens
                self.cost_usd += reply.cost_usd or 0.0
                return reply
        raise ValueError(f"tries is {self.tries}: at least 1")

    async def close(self) -> None:
        if self._client is not None:
            loop, client = self._client
            self._client = None
            if loop is asyncio.get_running_loop():
                await client.aclose()

    def _body(self, messages: Sequence[Mapping[str, str]], sampling: Sampling) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.name,
            "messages": [dict(message) for message in messages],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if self.url == OPENROUTER:
            body["usage"] = {"include": True}
        return body

    async def _try(self, body: Mapping[str, Any]) -> RemoteReply:
        import httpx2

        try:
            response = await self._connected().post(f"{self.url}/chat/completions", json=body)
        except httpx2.TimeoutException as error:
            raise _Again(f"no answer in {self.timeout:g} s") from error
        except httpx2.TransportError as error:
            raise _Again(f"{self.url}: {type(error).__name__}: {error}") from error
        if response.status_code in RETRIED:
            raise _Again(
                f"status {response.status_code}", _retry_after(response.headers.get("retry-after"))
            )
        if response.status_code != httpx2.codes.OK:
            said = response.text.strip()[:300]
            raise EngineError(f"{self.name}: {self.url}: status {response.status_code}: {said}")
        try:
            content = response.json()
        except ValueError as error:
            raise _Again("an answer that is not JSON") from error
        return self._read(content)

    def _read(self, content: Any) -> RemoteReply:
        failure = content.get("error") if isinstance(content, dict) else None
        if failure:  # some endpoints say 200 and then this
            code = failure.get("code") if isinstance(failure, dict) else None
            if code in RETRIED:
                raise _Again(f"error {code}")
            raise EngineError(f"{self.name}: {self.url}: {str(failure)[:300]}")
        try:
            text = content["choices"][0]["message"]["content"] or ""
            usage = content.get("usage") or {}
            cost = usage.get("cost")
            return RemoteReply(
                text=str(text),
                input_tokens=int(usage.get("prompt_tokens") or 0),
                output_tokens=int(usage.get("completion_tokens") or 0),
                cost_usd=None if cost is None else float(cost),
            )
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise _Again("an answer without a message") from error

    def _wait(self, number: int, told: float | None) -> float:
        """Twice as long each time, and never all at the same moment."""
        own = min(FIRST_WAIT * 2.0 ** (number - 1), LONGEST_WAIT) * self._random.uniform(0.5, 1.5)
        return own if told is None else min(told, LONGEST_WAIT) + self._random.uniform(0.0, 0.25)

    def _connected(self) -> httpx2.AsyncClient:
        """The client of this event loop: connections cannot be used in another one."""
        import httpx2

        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            # Whoever waits for a free connection is not timed out: nothing was sent yet.
            timeout = httpx2.Timeout(self.timeout, pool=None)
            limits = httpx2.Limits(max_connections=MAX_CONNECTIONS)
            headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
            client = httpx2.AsyncClient(timeout=timeout, limits=limits, headers=headers)
            self._client = (loop, client)
        return self._client[1]


def _endpoint(name: str, base_url: str | None) -> tuple[str, str | None]:
    """The address and the key."""
    environment = {
        key: value.strip()
        for key in ("OPENROUTER_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL")
        if (value := os.environ.get(key, "")).strip()
    }
    if base_url is None and "OPENROUTER_API_KEY" in environment:
        return OPENROUTER, environment["OPENROUTER_API_KEY"]
    key = environment.get("OPENAI_API_KEY")
    url = base_url or environment.get("OPENAI_BASE_URL") or (OPENAI if key else None)
    if url is None:
        raise EngineError(
            f"{name} is neither a player of ours nor a folder; to ask for it over the network, set"
            " OPENROUTER_API_KEY, or OPENAI_BASE_URL and OPENAI_API_KEY"
        )
    return url.rstrip("/"), key


def _retry_after(header: str | None) -> float | None:
    """Seconds, from a number or a date."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return None
