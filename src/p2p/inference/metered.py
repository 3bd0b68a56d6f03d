"""A model every single request to which is looked up, paid for, retried and recorded."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelTimeoutError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models.wrapper import WrapperModel

from p2p.contracts import ModelCall
from p2p.event_log import emit
from p2p.inference import prices
from p2p.inference.ledger import (
    Reservation,
    clean_response,
    clean_value,
    dump_messages,
    dump_parameters,
    dump_response,
    read_response,
    request_key,
    tokens_in,
)
from p2p.inference.providers import PROVIDERS, address_of, on_this_machine, split_model
from p2p.inference.question import (
    AuthenticationFailed,
    InferenceError,
    ProviderUnavailable,
    RateLimited,
    RequestRejected,
)
from p2p.settings import redact
from unstable.foreign_text import whole_characters
from unstable.utils.replies import UNREADABLE, ReplyTooLong

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.usage import RequestUsage

    from p2p.inference.ledger import Ledger
    from p2p.inference.question import Question, RequestOptions, RetryPolicy

LEAST_ANSWER = 1024
"""Tokens; with money for less than that a call is not worth making."""
_LONGEST_ANSWER = 64_000
_MOST_TOKENS = 100_000_000
"""No request has more, whatever its server says."""
_MONEY_POLL_S = 0.05
_LONGEST_MESSAGE = 500
INTERRUPTED = "it was interrupted before an answer came"
"""Why a request has no answer whose process was killed, or that was cancelled on its way."""
_NOT_REACHED = ("ConnectError", "ConnectTimeout", "PoolTimeout")

THINKING_TOKENS = {
    "minimal": 1024, "low": 2048, "medium": 10_000, "high": 16_384, "xhigh": 32_768, "max": 32_768,
}  # fmt: skip
"""Room for thinking beside the answer: what models that are told a number are told."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A request: as the library makes it, and as it is kept."""

    messages: list[ModelMessage]
    settings: ModelSettings | None
    parameters: ModelRequestParameters
    key: str
    content: dict[str, Any]
    tokens: int
    """About; rather too many."""


class MeteredModel(WrapperModel):
    """The model of one question, metered."""

    def __init__(
        self,
        wrapped: Model,
        name: str,
        question: Question[Any],
        ledger: Ledger,
        options: RequestOptions,
    ) -> None:
        super().__init__(wrapped)
        self.name = name
        self.role = question.role
        self.answer = question.output
        self.ledger = ledger
        self.options = options
        self.effort = options.thinking_effort if question.thinks else ""
        """How hard to think; empty: not at all, or as the model does by itself."""
        if self.effort not in THINKING_TOKENS or not self.can_think:
            self.effort = ""
        self.used: list[tuple[str, Path]] = []
        """Key and file of the exchanges of this question so far."""
        self.cut_off = 0
        self.refused = False
        """Whether the last answer was that there will be none."""
        self._served_by = PROVIDERS[split_model(name)[0]]
        retry = options.retry
        patient = self._served_by.local or on_this_machine(name)
        self._timeout_s = retry.local_timeout_s if patient else retry.timeout_s

    @property
    def can_think(self) -> bool:
        """Whether the model can be told to think first."""
        profile = self.wrapped.profile
        return bool(profile.get("supports_thinking") or profile.get("thinking_always_enabled"))

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """The answer: from its file, or from the model."""
        plain = dump_messages(messages)
        offer = dump_parameters(model_request_parameters)
        key = request_key(self.name, plain, offer, self.effort)
        recorded = self.ledger.find_recorded(key)
        if recorded is not None:
            self.used.append((key, recorded.path))
            emit("llm.replay", role=self.role, model=self.name, file=recorded.path.name)
            return self._make_usable(read_response(recorded.response), model_request_parameters)

        request = _Request(
            messages,
            model_settings,
            model_request_parameters,
            key,
            {**offer, "messages": plain},
            tokens_in(plain, offer),
        )
        failed = timeouts = 0
        waited = 0.0
        while True:
            try:
                response = await self._attempt(request, failed)
                return self._make_usable(response, model_request_parameters)
            except ModelAPIError as error:
                failed += 1
                timeouts += isinstance(error, ModelTimeoutError)
                seconds = _seconds_to_wait(error, self.options.retry, failed, timeouts, waited)
                if seconds is None:
                    final = _as_inference_error(error, self.name, failed)
                    emit("llm.error", role=self.role, model=self.name, error=str(final),
                         error_type=type(final).__name__)  # fmt: skip
                    raise final from error
                emit("llm.wait", role=self.role, model=self.name, seconds=round(seconds, 3),
                     attempt=failed, reason=_message_of(error))  # fmt: skip
                waited += seconds
                await asyncio.sleep(seconds)

    async def _attempt(self, request: _Request, retries: int) -> ModelResponse:
        """Ask the model once, and keep the exchange: also one that may only be charged for."""
        answer = self.options.max_tokens << self.cut_off
        most = min(answer + THINKING_TOKENS.get(self.effort, 0), _LONGEST_ANSWER)
        async with self._reserve(request.tokens, most) as held:
            call = ModelCall(
                number=0,
                role=self.role,
                model=self.name,
                retries=retries,
                input_tokens=request.tokens,
                output_tokens=held.max_tokens,
                cost_usd=held.dollars,
                no_answer=INTERRUPTED,
            )
            call = self.ledger.announce(request.key, call, _make_exchange(request, held, None))
            started = time.monotonic()
            try:
                response = await self._request_once(request, held.max_tokens)
            except BaseException as error:
                if _may_be_charged(error):
                    reason = _message_of(error) if isinstance(error, ModelAPIError) else INTERRUPTED
                    unknown = {
                        "latency_s": time.monotonic() - started,
                        "no_answer": reason or type(error).__name__,
                    }
                    self._record_exchange(request, call.model_copy(update=unknown), held, None)
                else:
                    self.ledger.withdraw(call)
                raise
            usage = response.usage
            known = {
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "cost_usd": prices.cost(self.name, usage),
                "latency_s": time.monotonic() - started,
                "no_answer": "",
            }
            path = self._record_exchange(request, call.model_copy(update=known), held, response)
            self.used.append((request.key, path))
        return response

    def _record_exchange(
        self, request: _Request, call: ModelCall, held: Reservation, response: ModelResponse | None
    ) -> Path:
        """Write an exchange to its file and the event log."""
        call, path = self.ledger.record(request.key, call, _make_exchange(request, held, response))
        data = call.model_dump(exclude={"latency_s", *(() if call.no_answer else ("no_answer",))})
        event = "llm.no_answer" if call.no_answer else "llm.call"
        emit(event, duration_ms=1000 * call.latency_s, **data)
        return path

    @asynccontextmanager
    async def _reserve(self, input_tokens: int, most: int) -> AsyncIterator[Reservation]:
        """Hold what the request can cost, and how long its answer may be."""
        expected = prices.estimate(self.name, input_tokens)
        if expected is None:
            if self.ledger.budget_usd is not None:
                raise prices.unknown_price(self.name)
            yield Reservation(most, None)
            return
        while (held := self.ledger.reserve(expected, most, LEAST_ANSWER)) is None:
            await asyncio.sleep(_MONEY_POLL_S)
        try:
            yield held
        finally:
            self.ledger.release(held)

    def _request_settings(self, base: ModelSettings | None, max_tokens: int) -> ModelSettings:
        settings: Any = dict(base or {})
        if self._served_by.key or self.ledger.budget_usd is not None:
            # A server of one's own knows best how much fits: it rejects what could be too much.
            settings["max_tokens"] = max_tokens
        settings |= {"timeout": self._timeout_s, "max_retries": 0}
        if self.options.thinking_effort:
            settings["thinking"] = affordable_effort(self.effort, max_tokens) or False
        return cast("ModelSettings", settings)

    async def _request_once(self, request: _Request, max_tokens: int) -> ModelResponse:
        settings, limit = self._request_settings(request.settings, max_tokens), self._timeout_s
        try:
            async with asyncio.timeout(limit):
                asked = self.wrapped.request(request.messages, settings, request.parameters)
                response = clean_response(await asked)
                _bound_usage(response.usage)
                return response
        except TimeoutError as error:
            raise ModelTimeoutError(self.name, f"no answer within {limit:g} s") from error
        except ContentFilterError as error:
            raise RequestRejected(f"{self.name} refuses to answer: {_quote(error)}") from error
        except UnexpectedModelBehavior as error:
            # A reply that is no reply in the provider's own protocol: the next may be one.
            raise ModelAPIError(self.name, _quote(error)) from error
        except UserError as error:
            raise RequestRejected(f"{self.name} rejects the request: {_quote(error)}") from error
        except UNREADABLE as error:
            message = f"a reply that cannot be read: {type(error).__name__}: {_quote(error)}"
            raise ModelAPIError(self.name, message) from error

    def _make_usable(
        self, response: ModelResponse, parameters: ModelRequestParameters
    ) -> ModelResponse:
        """The answer, if there is one to continue with; one in plain text as the call it is for."""
        if response.finish_reason == "content_filter":
            self.refused = True
            details = response.provider_details or {}
            reason = details.get("refusal") or response.text or "no reason given"
            raise RequestRejected(f"{self.name} refuses to answer: {redact(str(reason))[:500]}")
        if response.finish_reason == "length":
            self.cut_off += 1
            parts = [p for p in response.parts if not isinstance(p, ThinkingPart)]
            if not any(p for p in parts if not isinstance(p, TextPart) or p.content.strip()):
                # All was spent on thinking; without a word the conversation could not go on.
                response.parts = [TextPart("(cut off at the limit of tokens before any answer)")]
        if parameters.output_tools and not response.tool_calls:
            value = parse_written_answer(response.text or "", self.answer)
            if value is not None:
                # Without the thinking: providers hold it against what it came with.
                response.parts = [ToolCallPart(parameters.output_tools[0].name, value)]
        return response


def _make_exchange(
    request: _Request, held: Reservation, response: ModelResponse | None
) -> dict[str, Any]:
    """Request and response, as the exchange's file has them."""
    return {
        "request": {**request.content, "max_tokens": held.max_tokens},
        "response": None if response is None else dump_response(response),
    }


def affordable_effort(effort: str, max_tokens: int) -> str:
    """The effort, or as much of it as leaves room for an answer; empty: none does."""
    efforts = list(THINKING_TOKENS)
    tried = efforts[efforts.index(effort) :: -1] if effort else []
    fitting = (e for e in tried if THINKING_TOKENS[e] + LEAST_ANSWER <= max_tokens)
    return next(fitting, "")


_PAGE = re.compile(r"<(!doctype|html)\b.*", re.IGNORECASE | re.DOTALL)
_FENCE = re.compile(r"```(?:json)?\s*(?=\{)", re.IGNORECASE)
_DECODER = json.JSONDecoder(strict=False)  # code in a string may have its line breaks as they are


def parse_written_answer(text: str, kind: type[BaseModel]) -> dict[str, Any] | None:
    """An answer that was written out as JSON: the whole text, or its only fenced block.

    None where it is not complete, does not validate, or is not the only one.
    """
    text = text.strip()
    starts = [0] if text.startswith("{") else [fence.end() for fence in _FENCE.finditer(text)]
    values: list[dict[str, Any]] = []
    for start in starts:
        try:
            value, end = _DECODER.raw_decode(text, start)
            value = clean_value(value)
            kind.model_validate(value)
        except (ValueError, RecursionError):
            continue
        rest = text[end:].strip()
        if rest.startswith("```") if start else not rest:
            values.append(value)
    return values[0] if len(values) == 1 else None


def _bound_usage(usage: RequestUsage) -> None:
    """Make every count of tokens one that can be: a negative one would give money back."""
    for field in fields(usage):
        value = getattr(usage, field.name)
        if isinstance(value, int | float):
            possible = 0 <= value <= _MOST_TOKENS
            setattr(usage, field.name, int(value) if possible else _MOST_TOKENS * (value > 0))


def _quote(error: Exception) -> str:
    return redact(" ".join(whole_characters(str(error)).split()))[:_LONGEST_MESSAGE]


def _seconds_to_wait(
    error: ModelAPIError, policy: RetryPolicy, failed: int, timeouts: int, waited_s: float
) -> float | None:
    """Seconds until the next attempt; None: give up."""
    hopeless = isinstance(error, ModelRequestRejectedError | ModelQuotaExceededError)
    if hopeless or _too_long(error) or failed >= policy.attempts:
        return None
    if isinstance(error, ModelTimeoutError) and timeouts >= policy.timeouts:
        return None
    seconds = min(policy.first_s * 2 ** (failed - 1), policy.longest_s)
    seconds *= random.uniform(0.75, 1.25)  # noqa: S311 - so that clients do not come back together
    retry_after = read_retry_delay(error)
    if retry_after is not None:
        seconds = max(retry_after, 0.0) + random.uniform(0.0, 0.1)  # noqa: S311
    return seconds if waited_s + seconds <= policy.total_wait_s else None


def read_retry_delay(error: ModelAPIError) -> float | None:
    """The seconds that the provider wants us to wait: from the header, or as Gemini says it."""
    if error.retry_after is not None:
        return error.retry_after
    delay = re.search(r"'retryDelay': '(\d+(?:\.\d+)?)s'", str(error.body))
    return float(delay[1]) if delay else None


def _may_be_charged(error: BaseException) -> bool:
    """Return whether the provider may charge: it was reached and did not send an error."""
    # By name: which HTTP library raises them is an SDK's own business.
    return not any(
        isinstance(cause, ModelHTTPError | InferenceError) or type(cause).__name__ in _NOT_REACHED
        for cause in _causes_of(error)
    )


def _causes_of(error: BaseException) -> Iterator[BaseException]:
    """The error, what it came of, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _too_long(error: BaseException) -> str:
    """The words of a reply that was too long, where that was the cause."""
    return next((str(cause) for cause in _causes_of(error) if isinstance(cause, ReplyTooLong)), "")


def _as_inference_error(error: ModelAPIError, model: str, failed: int) -> InferenceError:
    """The failure as agents and people know it."""
    seconds = read_retry_delay(error)
    later = f", asks to wait {seconds:.0f} s" if seconds else ""
    kinds: tuple[tuple[type[ModelAPIError], type[InferenceError], str], ...] = (
        (ModelAuthenticationError, AuthenticationFailed, "the key is refused"),
        (ModelQuotaExceededError, RequestRejected, "the account has no credit left"),
        (ModelRateLimitError, RateLimited, f"refuses for now{later}"),
        (ModelNotFoundError, RequestRejected, _explain_not_found(model)),
        (ModelContextWindowExceededError, RequestRejected, "the request is too long"),
        (ModelRequestRejectedError, RequestRejected, "the request is rejected"),
        (ModelTimeoutError, ProviderUnavailable, "does not answer in time"),
        (ModelAPIError, ProviderUnavailable, "cannot be reached or fails"),
    )
    ours, text = next((ours, text) for kind, ours, text in kinds if isinstance(error, kind))
    tried = f" (tried {failed} times)" if failed > 1 else ""
    return ours(f"{model}: {text}{tried}: {_message_of(error)}")


def _explain_not_found(model: str) -> str:
    """Explain a 404: at an address that a user has set, the address may be wrong."""
    provider, name = split_model(model)
    address = address_of(PROVIDERS[provider])
    if not address:
        return "no such model"
    other = f"; if it speaks chat completions only, write openai-compatible:{name}"
    return f"{address} has no such model or path{other if provider == 'openai' else ''}"


def _message_of(error: ModelAPIError) -> str:
    """The provider's own words, short and without secrets; pages for browsers are left out."""
    text = _too_long(error) or error.message
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error", body)
        text = str(inner.get("message", text)) if isinstance(inner, dict) else str(inner)
    elif error.__cause__ is not None and not text.strip():
        text = str(error.__cause__)
    text = _PAGE.sub("(a page for browsers)", text)
    return redact(" ".join(whole_characters(text).split()))[:_LONGEST_MESSAGE]
