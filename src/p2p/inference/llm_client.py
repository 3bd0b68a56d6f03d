"""The one way to ask a model: made, metered, recorded and bounded here."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import threading
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from p2p.contracts import ModelCall
from p2p.event_log import current_log, emit, use_log
from p2p.inference import prices
from p2p.inference.agent_tools import ToolBudget, wrap_tool
from p2p.inference.ledger import Ledger, clean_value, request_key
from p2p.inference.providers import BUILTIN, choose_model, http_client, make_model, split_model
from p2p.inference.question import (
    OFF,
    Answer,
    AskAgain,
    AskingCancelled,
    BadReply,
    Conversation,
    Media,
    Output,
    Question,
    RequestOptions,
    RequestRejected,
    RetryPolicy,
)
from p2p.settings import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path

    from pydantic import BaseModel
    from pydantic_ai import Agent

    from p2p.inference.metered import MeteredModel

Result = TypeVar("Result")

TIMES_ASKED_AGAIN = 3
"""How often a reply that is malformed, cut off or will not do is answered with what is wrong."""
MAX_TOKENS = 16_000
_POLL_S = 0.1
_GRACE_S = 5.0
"""How long something that was cancelled may take to close its connections."""


class LLMClient:
    """Asks one model, for one session; any number of threads may ask at a time.

    Exchanges lie in `folder`, one file each. Answers that an earlier process has paid for are taken
    from there instead of asked for again. `builtin` is the built-in author, needed where that is
    the model: it is given all that was asked in a conversation, and how often its last answer would
    not do. `cancelled` is polled while a question is under way.
    """

    def __init__(
        self,
        model: str = "",
        *,
        folder: Path,
        builtin: Callable[[Sequence[str], int], BaseModel] | None = None,
        budget_usd: float | None = None,
        thinking_effort: str = "",
        cancelled: Callable[[], bool] = lambda: False,
        retry: RetryPolicy | None = None,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        self.model = _check_price(model, budget_usd)
        """As `provider:model`."""
        self.ledger = Ledger(folder, budget_usd)
        """What was asked and spent, in all processes of the session."""
        self._builtin = builtin
        self._options = RequestOptions(retry or RetryPolicy(), thinking_effort, max_tokens)
        self._no_thinking: set[str] = set()
        self._cancelled = cancelled
        self._log = current_log()

    def with_model(self, model: str) -> LLMClient:
        """A client for another model with the same folder, budget and totals."""
        other = copy.copy(self)
        other.model = _check_price(model, self.ledger.budget_usd)
        return other

    def forget(self, *roles: str) -> None:
        """Ask anew as these roles, also what an earlier process has got an answer to.

        For a phase whose outcome, though answered in full, was of no use.
        """
        self.ledger.forget(frozenset(roles))

    def ask(self, question: Question[Output]) -> Answer[Output]:
        """Ask and wait; raises an InferenceError, or AskingCancelled."""
        with use_log(current_log() or self._log):
            if self.model == BUILTIN:
                return self._ask_builtin(question)
            return _run_and_wait(lambda: self._ask(question), self._cancelled)

    def _ask_builtin(self, question: Question[Output]) -> Answer[Output]:
        """The built-in author's answer: a call in this process, without the library for models."""
        if self._builtin is None:
            raise RequestRejected("the built-in author is not available here")
        parts = [question.prompt] if isinstance(question.prompt, str) else question.prompt
        texts = [*question.after.messages] if question.after else []
        texts += [_make_sendable(part) for part in parts if isinstance(part, str)]
        problem: Exception | None = None
        for refusals in range(TIMES_ASKED_AGAIN + 1):
            if self._cancelled():
                raise AskingCancelled("stopped before the built-in author was asked")
            began = perf_counter()
            reply = clean_value(self._builtin(texts, refusals).model_dump_json())
            call = ModelCall(number=0, role=question.role, model=BUILTIN, cost_usd=0.0)
            content = {"request": {"instructions": question.instructions, "messages": texts}}
            key = request_key(BUILTIN, [], {**content, "refusals": refusals}, "")
            call, _ = self.ledger.record(key, call, {**content, "response": reply})
            data = call.model_dump(exclude={"latency_s", "no_answer"})
            emit("llm.call", duration_ms=1000 * (perf_counter() - began), **data)
            try:
                value = question.output.model_validate_json(reply)
                question.check(value)
            except (AskAgain, ValidationError) as error:
                problem = error
            else:
                return Answer(value, Conversation(texts), BUILTIN)
        raise BadReply(f"{BUILTIN} gave no usable answer as {question.role}: {problem}")

    async def _ask(self, question: Question[Output]) -> Answer[Output]:
        from pydantic_ai import UsageLimits
        from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded

        from p2p.inference.metered import MeteredModel

        client = http_client()
        model = MeteredModel(
            make_model(self.model, client),
            self.model,
            question,
            self.ledger,
            self._options,
        )
        self._note_thinking(model, question)
        requests = question.max_tool_calls + 2 * TIMES_ASKED_AGAIN + 2
        try:
            async with client, model:
                result = await self._agent(model, question).run(
                    _to_prompt_parts(question.prompt),
                    message_history=question.after.messages if question.after else None,
                    usage_limits=UsageLimits(request_limit=requests),
                )
        except (UsageLimitExceeded, UnexpectedModelBehavior) as error:
            self.ledger.discard_answers([path for _, path in model.used])
            raise BadReply(
                f"{self.model} gave no usable answer as {question.role}: {_describe_error(error)}"
            ) from error
        except BaseException:
            if model.refused:
                self.ledger.discard_answers([path for _, path in model.used])
            else:
                self.ledger.restore_answers(model.used)
            raise
        return Answer(result.output, Conversation(result.all_messages()), self.model)

    def _note_thinking(self, model: MeteredModel, question: Question[Output]) -> None:
        """Say once for each model that it cannot be told to think."""
        asked = question.thinks and self._options.thinking_effort not in ("", OFF)
        if not asked or model.can_think or self.model in self._no_thinking:
            return
        self._no_thinking.add(self.model)
        note = f"{self.model} has no setting for thinking effort: its default is used"
        emit("llm.no_thinking", model=self.model, reason=note)

    def _agent(self, model: MeteredModel, question: Question[Output]) -> Agent[object, Output]:
        import pydantic_ai
        from pydantic_ai import Agent, ModelRetry, NativeOutput, ToolOutput

        pydantic_ai.BANNER_ENABLED = False  # the terminal is the session's own
        budget = ToolBudget(question.max_tool_calls)
        in_json = _answers_in_json(self.model) and not question.tools
        agent: Agent[object, Output] = Agent(
            model,
            output_type=NativeOutput(question.output) if in_json else ToolOutput(question.output),
            instructions=question.instructions,
            tools=[wrap_tool(tool, budget) for tool in question.tools],
            retries={"tools": 2 * TIMES_ASKED_AGAIN, "output": TIMES_ASKED_AGAIN},
            # Every further request begins with all that was said before.
            model_settings={"cache": True} if question.tools or question.after else None,
            name=question.role,
        )

        @agent.output_validator
        async def check(value: Output) -> Output:
            try:
                question.check(value)
            except AskAgain as problem:
                raise ModelRetry(redact(str(problem))) from problem
            return value

        return agent


def _check_price(model: str, budget_usd: float | None) -> str:
    """The model's whole name; raises InferenceError where a budget could not be kept with it."""
    name = choose_model(model)
    if budget_usd is not None and prices.estimate(name, 1) is None:
        raise prices.unknown_price(name)
    return name


def _answers_in_json(model: str) -> bool:
    """Local servers hold a model to a JSON schema; calling tools is more than many of them can."""
    return split_model(model)[0] in ("ollama", "vllm")


def _to_prompt_parts(prompt: Any) -> Any:
    from pydantic_ai import BinaryContent

    if isinstance(prompt, str):
        return _make_sendable(prompt)
    parts: list[Any] = []
    for part in prompt:
        if isinstance(part, Media):
            details = {"fps": part.fps} if part.fps else None
            parts.append(
                BinaryContent(part.data, media_type=part.media_type, vendor_metadata=details)
            )
        else:
            parts.append(_make_sendable(part))
    return parts


def _make_sendable(text: str) -> str:
    """The text without secrets and without halves of characters."""
    return redact(text).encode("utf-8", errors="replace").decode()


def _describe_error(error: BaseException) -> str:
    """The library's message and what is behind it, in a line."""
    cause = error.__cause__
    text = f"{error} ({cause})" if cause is not None else str(error)
    return redact(" ".join(text.split()))[:500]


def _run_and_wait(
    work: Callable[[], Coroutine[object, object, Result]], cancelled: Callable[[], bool]
) -> Result:
    """Run to the end in a thread and event loop of its own.

    Ctrl-C comes through at once and `cancelled` is polled; either stops the work. May be called
    where an event loop is running already, as inside a tool.
    """
    outcome: list[Result] = []
    failure: list[BaseException] = []
    task: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Result]]] = []
    started = threading.Event()

    async def main() -> Result:
        running = asyncio.ensure_future(work())
        task.append((asyncio.get_running_loop(), running))
        started.set()
        return await running

    def body() -> None:
        try:
            outcome.append(asyncio.run(main()))
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits
            failure.append(error)
        finally:
            started.set()

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(body,), name="p2p-asking", daemon=True)
    thread.start()
    try:
        _wait_for(thread, cancelled)
    except BaseException:
        started.wait(_GRACE_S)
        for loop, running in task:
            with contextlib.suppress(RuntimeError):  # it has ended by itself in this moment
                loop.call_soon_threadsafe(running.cancel)
        thread.join(_GRACE_S)
        raise
    if failure:
        raise failure[0]
    return outcome[0]


def _wait_for(thread: threading.Thread, cancelled: Callable[[], bool]) -> None:
    while thread.is_alive():
        thread.join(_POLL_S)
        if thread.is_alive() and cancelled():
            raise AskingCancelled("stopped while waiting for a model")
