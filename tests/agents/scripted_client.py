"""A client that answers by a script: what each role says, by a function of the request."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from p2p.agents.requests import REQUESTS, FixRequest
from p2p.contracts import AuthoredCode, Criterion, Intent, Record
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import Answer, AskAgain, BadReply, Conversation, Media, Question

Say = Callable[[Any, Question[Any]], Record]

_BLOCK = re.compile(r'<request role="(\w+)">\n(.*?)\n</request>', re.DOTALL)


def blocks(text: str) -> list[tuple[str, Record]]:
    """Every request block of a text, parsed as its role says."""
    return [(role, REQUESTS[role].model_validate_json(body)) for role, body in _BLOCK.findall(text)]


class ScriptedClient(LLMClient):
    """Finds the last request block of a question and lets the script of its role answer."""

    model = "test:scripted"

    def __init__(self, script: Mapping[str, Say], attempts: int = 3) -> None:
        self.script = script
        self.attempts = attempts
        self.asked: list[Question[Any]] = []
        self.refusals: list[str] = []
        self._lock = threading.Lock()

    def roles(self) -> list[str]:
        return [blocks(prompt_text(question))[-1][0] for question in self.asked]

    def ask(self, question: Question[Any]) -> Answer[Any]:
        with self._lock:
            self.asked.append(question)
        role, request = blocks(prompt_text(question))[-1]
        for _ in range(self.attempts):
            value = self.script[role](request, question)
            value = question.output.model_validate_json(value.model_dump_json())
            try:
                question.check(value)
            except AskAgain as error:
                self.refusals.append(str(error))
                continue
            said = [*(question.after.messages if question.after else []), question.prompt]
            return Answer(value, Conversation(said), self.model)
        raise BadReply(self.refusals[-1])


def prompt_text(question: Question[Any]) -> str:
    if isinstance(question.prompt, str):
        return question.prompt
    return "\n".join(part for part in question.prompt if isinstance(part, str))


def media_of(question: Question[Any]) -> list[Media]:
    return [part for part in question.prompt if isinstance(part, Media)]


def kinds(authored: AuthoredCode) -> list[tuple[str, bool]]:
    return [(step.kind, step.ok) for step in authored.steps]


def fixes(client: ScriptedClient) -> list[FixRequest]:
    last = (blocks(prompt_text(question))[-1][1] for question in client.asked)
    return [request for request in last if isinstance(request, FixRequest)]


def in_turn(*answers: Record) -> Say:
    """One answer after the other; the last one again and again."""
    left = list(answers)
    return lambda request, question: left.pop(0) if len(left) > 1 else left[0]


def criterion(name: str, category: str = "task", **changes: Any) -> Criterion:
    given: dict[str, Any] = {
        "id": name,
        "title": f"about {name}",
        "description": "what it is",
        "measure": f"mean of {name}",
        "comparison": "at_least",
        "threshold": 1.0,
        "weight": 0.5,
        "category": category,
    }
    return Criterion.model_validate(given | changes)


def hopper_intent(*criteria: Criterion) -> Intent:
    wanted: Sequence[Criterion] = criteria or (
        criterion("stays", threshold=100, unit="steps"),
        criterion("calm", "efficiency", soft_reason="a matter of effort"),
    )
    return Intent(prompt="stand", env_id="Hopper-v5", criteria=tuple(wanted), author="test")
