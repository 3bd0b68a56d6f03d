"""What an agent may ask a model and how, what it gets back, and how asking can fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

OFF = "off"
"""The thinking effort of a client whose questions are all answered at once."""
Output = TypeVar("Output", bound=BaseModel)
Tool = Callable[..., str]
"""A plain function with type hints and a docstring; what it returns is shown to the model."""


@dataclass(frozen=True, slots=True)
class Media:
    """A picture or a video that goes with a question."""

    data: bytes
    media_type: str
    """image/jpeg, image/png or video/mp4."""
    fps: float | None = None
    """Of a video: how many frames a second to look at, where the provider lets us say so."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation to continue; opaque outside of this package."""

    messages: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(Generic[Output]):
    """A question to a model, asked until an acceptable answer has come."""

    role: str
    """Who asks; stands in events and file names."""
    instructions: str
    """The system prompt."""
    prompt: str | Sequence[str | Media]
    output: type[Output]
    tools: Sequence[Tool] = ()
    max_tool_calls: int = 0
    """Calls, not rounds; a call over it is answered with a refusal."""
    check: Callable[[Output], None] = field(default=lambda _: None)
    """Raises `AskAgain` if the answer will not do; the model then sees why."""
    after: Conversation | None = None
    """Go on with this conversation (same role and instructions)."""
    thinks: bool = False
    """Whether it is worth thinking about before answering, as hard as the client is told to."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[Output]):
    """An acceptable answer."""

    value: Output
    conversation: Conversation
    model: str
    """As `provider:model`."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long to try again: minutes, not hours."""

    attempts: int = 6
    total_wait_s: float = 240.0
    """In all, for one request."""
    first_s: float = 1.0
    """Doubled every time, plus or minus a quarter."""
    longest_s: float = 60.0
    timeouts: int = 2
    """A request that ran into its timeout is tried so often in all: each try takes long."""
    timeout_s: float = 300.0
    """Of one attempt."""
    local_timeout_s: float = 1800.0
    """Of one attempt at a model on a machine of one's own, which may be slow."""


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """How a client asks."""

    retry: RetryPolicy
    thinking_effort: str
    """Of questions that are worth it; the others are answered at once. Empty: whatever the model
    does by itself, for all of them."""
    max_tokens: int
    """Of an answer; doubled for the next try after one was cut off."""


class AskingCancelled(Exception):
    """Asking was cancelled. No InferenceError: nothing failed."""


class AskAgain(Exception):
    """The answer will not do; the text says why, to the model."""


class InferenceError(Exception):
    """A question has got no answer. The message is one for people."""


class AuthenticationFailed(InferenceError):
    """The key is missing or refused. Asking again will not help."""


class RateLimited(InferenceError):
    """The provider kept refusing for now; asking later may help."""


class ProviderUnavailable(InferenceError):
    """Cannot be reached, times out or fails on its side, also after the retries."""


class RequestRejected(InferenceError):
    """The provider will not do it: unknown model, too long, not allowed."""


class BadReply(InferenceError):
    """No acceptable answer came within the number of times it was asked."""


class BudgetExhausted(InferenceError):
    """The next call could cost more than is left of the session's budget."""


class NotUnderstood(InferenceError):
    """The built-in author finds nothing in the prompt that it knows."""
