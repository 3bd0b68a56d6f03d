"""Models behind any OpenAI-compatible chat endpoint, as opponents."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unstable.engines import EngineError, Sampling
from unstable.foreign_text import whole_characters, without_secrets

if TYPE_CHECKING:
    from openai import AsyncOpenAI

OPENROUTER = "https://openrouter.ai/api/v1"
OPENAI = "https://api.openai.com/v1"


class RemoteModel:
    """Sends chat requests to a remote model.

    The endpoint is OpenRouter if there is an OPENROUTER_API_KEY, else OPENAI_BASE_URL with
    OPENAI_API_KEY. Keys are read from the environment and appear nowhere else. What may work the
    next time is tried again: by the client what the transport or a status says, here an answer
    that cannot be read.

    Args:
        name: the model, as the endpoint calls it.
        timeout: seconds for one try.
        tries: how often at most.

    Raises:
        EngineError: there is neither a key nor an address.
    """

    def __init__(self, name: str, *, timeout: float = 60.0, tries: int = 5) -> None:
        if tries < 1:
            raise ValueError(f"tries is {tries}: at least 1")
        self.name = name
        self.timeout = timeout
        self.tries = tries
        self.url, self._key = _endpoint(name)
        self.cost_usd = 0.0
        """Of all answers that came with their cost."""
        self._client: tuple[asyncio.AbstractEventLoop, AsyncOpenAI] | None = None

    async def ask(self, messages: Sequence[Mapping[str, str]], sampling: Sampling) -> str:
        """Return the next message of a chat.

        Raises:
            EngineError: the endpoint refused, or did not answer however often it was asked.
        """
        for _ in range(self.tries):
            completion = await self._request(messages, sampling)
            text = self._read(completion)
            if text is not None:
                cost = getattr(getattr(completion, "usage", None), "cost", None)
                if isinstance(cost, int | float) and 0 < cost < math.inf:
                    self.cost_usd += float(cost)
                return text
        raise EngineError(f"{self.name}: {self.url}: {self.tries} answers without a message")

    async def close(self) -> None:
        if self._client is not None:
            loop, client = self._client
            self._client = None
            if loop is asyncio.get_running_loop():
                await client.close()

    async def _request(self, messages: Sequence[Mapping[str, str]], sampling: Sampling) -> Any:
        """Return the reply of status 200, which may still be no completion."""
        from openai import APIConnectionError, APIStatusError, Omit, omit

        from unstable.utils.replies import UNREADABLE

        conversation: Any = [dict(message) for message in messages]
        try:
            return await self._connect().chat.completions.create(
                model=self.name,
                messages=conversation,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_tokens,
                seed=omit if sampling.seed is None else sampling.seed,
                extra_body={"usage": {"include": True}} if self.url == OPENROUTER else None,
                extra_headers=None if self._key else {"Authorization": Omit()},
            )
        except APIStatusError as error:
            text = self._remove_secrets(error.response.text.strip())[:300]
            message = f"{self.name}: {self.url}: status {error.status_code}: {text}"
            raise EngineError(message) from error
        except APIConnectionError as error:  # timeouts too
            cause = error.__cause__ or error
            message = f"{self.name}: {self.url}: {type(cause).__name__}: {cause}"
            raise EngineError(f"{message}, {self.tries} times") from error
        except UNREADABLE:  # not even JSON as the client takes it
            return None

    def _read(self, completion: Any) -> str | None:
        """Return the answer; None if it is missing now and may come with a retry."""
        failure = getattr(completion, "error", None)
        if failure:  # some endpoints say 200 and then this
            code = failure.get("code") if isinstance(failure, dict) else None
            if isinstance(code, int) and (code in (408, 409, 429) or code >= 500):
                return None
            raise EngineError(
                f"{self.name}: {self.url}: {self._remove_secrets(str(failure))[:300]}"
            )
        try:
            return self._remove_secrets(str(completion.choices[0].message.content or ""))
        except (AttributeError, LookupError, TypeError):
            return None

    def _remove_secrets(self, text: str) -> str:
        """Remove the key and halves of characters, which no file can hold."""
        return without_secrets(whole_characters(text), (self._key or "",))

    def _connect(self) -> AsyncOpenAI:
        """Return the client of this event loop: connections cannot be used in another one."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        from unstable.utils.replies import limit_reply

        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            client = AsyncOpenAI(
                api_key=self._key or "none",
                base_url=self.url,
                timeout=self.timeout,
                max_retries=self.tries - 1,
                http_client=DefaultAsyncHttpxClient(event_hooks={"response": [limit_reply]}),
            )
            self._client = (loop, client)
        return self._client[1]


def _endpoint(name: str) -> tuple[str, str | None]:
    """Return the address and the key."""
    environment = {
        key: value.strip()
        for key in ("OPENROUTER_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL")
        if (value := os.environ.get(key, "")).strip()
    }
    if "OPENROUTER_API_KEY" in environment:
        return OPENROUTER, environment["OPENROUTER_API_KEY"]
    key = environment.get("OPENAI_API_KEY")
    url = environment.get("OPENAI_BASE_URL") or (OPENAI if key else None)
    if url is None:
        raise EngineError(
            f"{name} is neither a built-in player nor a folder; for a model behind an endpoint, set"
            " OPENROUTER_API_KEY, or OPENAI_BASE_URL and OPENAI_API_KEY"
        )
    return url.rstrip("/"), key
