"""Who thinks without a language model: every agent's role, from a grammar of motion.

`answer` is a pydantic-ai function model: it reads the request block that every prompt carries and
answers through the output tool, on the same road as any provider.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from p2p.agents.requests import REQUESTS, FixRequest, ReviseRequest
from p2p.contracts import Record
from p2p.inference.question import RequestRejected

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models.function import AgentInfo

__all__ = ["answer", "answer_request"]

_BLOCK = re.compile(r'<request role="(\w+)">\s*(.*?)\s*</request>', re.DOTALL)


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Answer the last request of a conversation.

    Raises RequestRejected where there is none, or where no rule can answer its role.
    """
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

    texts, refusals = _conversation(messages)
    reply = answer_request(requests_in(texts), refusals)
    text = reply.model_dump_json()
    if info.output_tools:
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, text)])
    return ModelResponse(parts=[TextPart(text)])


def _conversation(messages: Sequence[ModelMessage]) -> tuple[list[str], int]:
    """What was asked, in its order, and how often the answer to the last was sent back."""
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    found: list[str] = []
    refusals = 0
    for message in messages:
        if not isinstance(message, ModelRequest):
            refusals += (
                1  # it never calls other tools: what was answered and is asked on was refused
            )
            continue
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                content = [part.content] if isinstance(part.content, str) else part.content
                found += [piece for piece in content if isinstance(piece, str)]
                refusals = 0
    return found, refusals


def requests_in(texts: Sequence[str]) -> list[tuple[str, Record]]:
    """Every request of a conversation with its role; raises RequestRejected for a damaged one."""
    found: list[tuple[str, Record]] = []
    for text in texts:
        for role, body in _BLOCK.findall(text):
            if role not in REQUESTS:
                raise RequestRejected(f"the built-in author does not know the role {role!r}")
            try:
                found.append((role, REQUESTS[role].model_validate_json(body)))
            except ValidationError as error:
                raise RequestRejected(f"the request for {role} is damaged: {error}") from error
    return found


def answer_request(asked: Sequence[tuple[str, Record]], refusals: int = 0) -> Record:
    """The answer to the last of these requests, after so many that would not do."""
    if not asked:
        raise RequestRejected(
            "the built-in author answers this program's own requests only; there is none"
        )
    from p2p.agents.builtin.revise import revise

    role, request = asked[-1]
    if role == "fix":
        return _fix(asked)
    if isinstance(request, ReviseRequest):
        return revise(request, refusals)
    return _roles()[role](request)


def _fix(asked: Sequence[tuple[str, Record]]) -> Record:
    from p2p.agents.builtin import review

    mend: Mapping[str, Callable[[Any, list[FixRequest]], Record]] = {
        "reward_author": review.fix_reward,
        "judge_author": review.fix_judge,
    }
    fixes = [request for _, request in asked if isinstance(request, FixRequest)]
    for role, request in reversed(asked):
        if role in mend:
            return mend[role](request, fixes)
    raise RequestRejected("there is nothing to fix: no author was asked before")


def _roles() -> Mapping[str, Callable[[Any], Record]]:
    from p2p.agents.builtin import analyze, criteria, judge, review, reward

    return {
        "environment_chooser": criteria.choose_environment,
        "intent_elicitor": criteria.write_criteria,
        "reward_author": reward.write_reward,
        "judge_author": judge.write_judge,
        "reward_reviewer": review.review_reward,
        "judge_reviewer": review.review_judge,
        "visual_judge": judge.cannot_see,
        "synthesiser": judge.synthesise,
        "session_analyzer": analyze.analyze_session,
    }
