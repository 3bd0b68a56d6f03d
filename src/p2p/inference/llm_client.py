"""The one way to ask a model: made, metered, recorded and bounded here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from p2p.event_log import current_log, use_log
from p2p.inference import prices
from p2p.inference.agent_tools import ToolBudget, offered
from p2p.inference.ledger import Ledger
from p2p.inference.providers import PROVIDERS, choose_model, make_model, split_model
from p2p.inference.question import (
    Answer,
    AskAgain,
    BadReply,
    Conversation,
    Media,
    Output,
    Question,
)
from p2p.inference.retrying import Patience, Wait
from p2p.inference.waiting import run_and_wait
from p2p.settings import redact

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pydantic_ai import Agent
    from pydantic_ai.models.function import FunctionDef

    from p2p.inference.metered import Manner, MeteredModel
    from p2p.inference.question import Asker

TIMES_ASKED_AGAIN = 3
"""How often a reply that is malformed, cut off or will not do is answered with what is wrong."""
MAX_TOKENS = 16_000
"""Of an answer; doubled for the next try after one was cut off."""


class LLMClient:
    """Asks one model, for one session; any number of threads may ask at a time.

    Exchanges lie in `folder`, one file each. Answers that an earlier process has paid for are taken
    from there instead of asked for again. `builtin` is the built-in author's function, needed where
    that is the model. `on_wait` is called, in another thread, before a wait for a provider that
    refuses for now. `cancelled` is polled while a question is under way.
    """

    def __init__(
        self,
        model: str = "",
        *,
        folder: Path,
        builtin: FunctionDef | None = None,
        budget_usd: float | None = None,
        thinking_effort: str = "",
        on_wait: Callable[[Wait], None] = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
        patience: Patience | None = None,
        max_tokens: int = MAX_TOKENS,
        ledger: Ledger | None = None,
    ) -> None:
        self._name = choose_model(model)
        self._builtin = builtin
        self._options: dict[str, Any] = {
            "thinking_effort": thinking_effort,
            "on_wait": on_wait,
            "cancelled": cancelled,
            "patience": patience or Patience(),
            "max_tokens": max_tokens,
        }
        self._log = current_log()
        self._ledger = Ledger(folder, budget_usd) if ledger is None else ledger
        if self._ledger.budget_usd is not None and prices.estimate(self._name, 1) is None:
            from p2p.inference.metered import unknown_price

            raise unknown_price(self._name)

    def with_model(self, model: str) -> LLMClient:
        """A client for another model with the same folder, budget and totals."""
        return LLMClient(
            model,
            folder=self._ledger.folder,
            builtin=self._builtin,
            ledger=self._ledger,
            **self._options,
        )

    @property
    def model(self) -> str:
        """As `provider:model`."""
        return self._name

    @property
    def calls(self) -> int:
        """Requests that were answered, in all processes of the session."""
        return self._ledger.calls

    @property
    def tokens(self) -> int:
        """In and out, in all processes of the session."""
        return self._ledger.tokens

    @property
    def cost_usd(self) -> float:
        """As far as prices are known, in all processes of the session."""
        return self._ledger.cost_usd

    @property
    def unanswered(self) -> int:
        """Requests that got no answer and may be charged for, in all processes of the session."""
        return self._ledger.unanswered

    @property
    def unanswered_usd(self) -> float:
        """The most that those can have cost, as far as prices are known."""
        return self._ledger.unanswered_usd

    def forget(self, *roles: str) -> None:
        """Ask anew as these roles, also what an earlier process has got an answer to.

        For a phase whose outcome, though answered in full, was of no use.
        """
        self._ledger.forget(frozenset(roles))

    def ask(self, question: Question[Output]) -> Answer[Output]:
        """Ask and wait; raises an InferenceError, or AskingCancelled."""
        with use_log(current_log() or self._log):
            return run_and_wait(lambda: self._ask(question), self._options["cancelled"])

    async def _ask(self, question: Question[Output]) -> Answer[Output]:
        from pydantic_ai import UsageLimits
        from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded

        from p2p.inference.metered import MeteredModel

        model = MeteredModel(
            make_model(self._name, self._builtin),
            self._name,
            question.role,
            self._ledger,
            self._manner(),
        )
        requests = question.max_tool_calls + 2 * TIMES_ASKED_AGAIN + 2
        try:
            async with model:
                result = await self._agent(model, question).run(
                    _prompt(question.prompt, self._name),
                    message_history=question.after.messages if question.after else None,
                    usage_limits=UsageLimits(request_limit=requests),
                )
        except (UsageLimitExceeded, UnexpectedModelBehavior) as error:
            self._ledger.spoil([path for _, path in model.used])
            raise BadReply(
                f"{self._name} gave no usable answer as {question.role}: {_why(error)}"
            ) from error
        except BaseException:
            if model.refused:
                self._ledger.spoil([path for _, path in model.used])
            else:
                self._ledger.give_back(model.used)
            raise
        return Answer(result.output, Conversation(result.all_messages()), self._name)

    def _agent(self, model: MeteredModel, question: Question[Output]) -> Agent[object, Output]:
        import pydantic_ai
        from pydantic_ai import Agent, ModelRetry, NativeOutput, ToolOutput

        pydantic_ai.BANNER_ENABLED = False  # the terminal is the session's own
        budget = ToolBudget(question.max_tool_calls)
        in_json = _answers_in_json(self._name) and not question.tools
        agent: Agent[object, Output] = Agent(
            model,
            output_type=NativeOutput(question.output) if in_json else ToolOutput(question.output),
            instructions=question.instructions,
            tools=[offered(tool, budget) for tool in question.tools],
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

    def _manner(self) -> Manner:
        from p2p.inference.metered import Manner

        options = self._options
        return Manner(
            options["patience"],
            options["thinking_effort"],
            options["max_tokens"],
            options["on_wait"],
        )


if TYPE_CHECKING:
    _is_an_asker: type[Asker] = LLMClient


def _answers_in_json(model: str) -> bool:
    """Local servers hold a model to a JSON schema; calling tools is more than many of them can."""
    return split_model(model)[0] in ("ollama", "vllm")


def _prompt(prompt: Any, model: str) -> Any:
    from pydantic_ai import BinaryContent

    if isinstance(prompt, str):
        return _text(prompt)
    sees_video = PROVIDERS[split_model(model)[0]].sees_video
    parts: list[Any] = []
    for part in prompt:
        if isinstance(part, Media):
            details = {"fps": part.fps} if part.fps and sees_video else None
            parts.append(
                BinaryContent(part.data, media_type=part.media_type, vendor_metadata=details)
            )
        else:
            parts.append(_text(part))
    return parts


def _text(text: str) -> str:
    """What can be sent: without secrets and without halves of characters."""
    return redact(text).encode("utf-8", errors="replace").decode()


def _why(error: BaseException) -> str:
    """The library's message and what is behind it, in a line."""
    cause = error.__cause__
    text = f"{error} ({cause})" if cause is not None else str(error)
    return redact(" ".join(text.split()))[:500]
