"""How requests are made and retried: which failures are worth another try, and when."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from p2p.inference.question import (
    AuthenticationFailed,
    InferenceError,
    ProviderUnavailable,
    RateLimited,
    RequestRejected,
)
from p2p.settings import redact

if TYPE_CHECKING:
    from pydantic_ai.exceptions import ModelAPIError

_LONGEST_MESSAGE = 500
_NOT_REACHED = ("ConnectError", "ConnectTimeout", "PoolTimeout")


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
    max_tokens: int
    """Of an answer; doubled for the next try after one was cut off."""


def seconds_to_wait(
    error: ModelAPIError, policy: RetryPolicy, failed: int, timeouts: int, waited_s: float
) -> float | None:
    """Seconds until the next attempt; None: give up."""
    if not _is_transient(error) or failed >= policy.attempts:
        return None
    if is_timeout(error) and timeouts >= policy.timeouts:
        return None
    seconds = min(policy.first_s * 2 ** (failed - 1), policy.longest_s)
    seconds *= random.uniform(0.75, 1.25)  # noqa: S311 - so that clients do not come back together
    retry_after = asked_to_wait(error)
    if retry_after is not None:
        seconds = max(retry_after, 0.0) + random.uniform(0.0, 0.1)  # noqa: S311
    return seconds if waited_s + seconds <= policy.total_wait_s else None


def asked_to_wait(error: ModelAPIError) -> float | None:
    """The seconds that the provider wants us to wait: from the header, or as Gemini says it."""
    if error.retry_after is not None:
        return error.retry_after
    delay = re.search(r"'retryDelay': '(\d+(?:\.\d+)?)s'", str(error.body))
    return float(delay[1]) if delay else None


def is_timeout(error: ModelAPIError) -> bool:
    """Whether no answer came in time."""
    from pydantic_ai.exceptions import ModelTimeoutError

    return isinstance(error, ModelTimeoutError)


def may_be_charged(error: ModelAPIError) -> bool:
    """Whether the provider may have done the work: it was reached, and sent back no error."""
    from pydantic_ai.exceptions import ModelHTTPError

    cause: BaseException | None = error
    while cause is not None:
        # By name: which HTTP library raises them is an SDK's own business.
        if isinstance(cause, ModelHTTPError) or type(cause).__name__ in _NOT_REACHED:
            return False
        cause = cause.__cause__ or cause.__context__
    return True


def as_inference_error(error: ModelAPIError, model: str, failed: int) -> InferenceError:
    """The failure as agents and people know it."""
    from pydantic_ai import exceptions as theirs

    seconds = asked_to_wait(error)
    later = f", asks to wait {seconds:.0f} s" if seconds else ""
    kinds: tuple[tuple[type[ModelAPIError], type[InferenceError], str], ...] = (
        (theirs.ModelAuthenticationError, AuthenticationFailed, "the key is refused"),
        (theirs.ModelQuotaExceededError, RequestRejected, "the account has no credit left"),
        (theirs.ModelRateLimitError, RateLimited, f"refuses for now{later}"),
        (theirs.ModelNotFoundError, RequestRejected, "no such model"),
        (theirs.ModelContextWindowExceededError, RequestRejected, "the request is too long"),
        (theirs.ModelRequestRejectedError, RequestRejected, "the request is rejected"),
        (theirs.ModelTimeoutError, ProviderUnavailable, "does not answer in time"),
        (theirs.ModelAPIError, ProviderUnavailable, "cannot be reached or fails"),
    )
    ours, text = next((ours, text) for kind, ours, text in kinds if isinstance(error, kind))
    tried = f" (tried {failed} times)" if failed > 1 else ""
    return ours(f"{model}: {text}{tried}: {message_of(error)}")


def message_of(error: ModelAPIError) -> str:
    """The provider's own words, short and without secrets."""
    text = error.message
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error", body)
        text = str(inner.get("message", text)) if isinstance(inner, dict) else str(inner)
    elif error.__cause__ is not None and not text.strip():
        text = str(error.__cause__)
    return redact(" ".join(text.split()))[:_LONGEST_MESSAGE]


def _is_transient(error: ModelAPIError) -> bool:
    """Whether the same request may succeed later."""
    from pydantic_ai.exceptions import ModelQuotaExceededError, ModelRequestRejectedError

    return not isinstance(error, ModelRequestRejectedError | ModelQuotaExceededError)
