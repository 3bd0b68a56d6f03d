"""Every agent's role without a language model, from a grammar of motion.

`answer` reads the request block that every prompt carries, as a provider does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from p2p.agents.requests import (
    REQUESTS,
    AlternativeRequest,
    FixRequest,
    JudgeRequest,
    ReviseRequest,
    RewardRequest,
)
from p2p.contracts import Record
from p2p.inference.question import RequestRejected

__all__ = ["answer", "answer_request"]

_BLOCK = re.compile(r'<request role="(\w+)">\s*(.*?)\s*</request>', re.DOTALL)


def answer(texts: Sequence[str], refusals: int) -> Record:
    """Answer the last request of a conversation, after so many answers to it that would not do.

    Raises RequestRejected where there is none, or where no rule can answer its role.
    """
    return answer_request(requests_in(texts), refusals)


def requests_in(texts: Sequence[str]) -> list[tuple[str, Record]]:
    """Return the requests of a conversation with their roles; raises RequestRejected if damaged."""
    requests: list[tuple[str, Record]] = []
    for role, block in (match for text in texts for match in _BLOCK.findall(text)):
        if role not in REQUESTS:
            raise RequestRejected(f"the built-in author does not know the role {role!r}")
        try:
            requests.append((role, REQUESTS[role].model_validate_json(block)))
        except ValidationError as error:
            raise RequestRejected(f"the request for {role} is damaged: {error}") from error
    return requests


def answer_request(requests: Sequence[tuple[str, Record]], refusals: int = 0) -> Record:
    """The answer to the last of these requests, after so many that would not do."""
    if not requests:
        raise RequestRejected(
            "the built-in author answers this program's own requests only; there is none"
        )
    from p2p.agents.builtin import (
        criteria,
        judge,
        review,
        revise,
        reward,
    )

    role, request = requests[-1]
    if isinstance(request, ReviseRequest):
        return revise.revise(request, refusals)
    if role == "fix":
        fixes = [fix for _, fix in requests if isinstance(fix, FixRequest)]
        for _, authored in reversed(requests):
            if isinstance(authored, RewardRequest):
                return review.fix_reward(authored, fixes)
            if isinstance(authored, JudgeRequest):
                return review.fix_judge(authored, fixes)
        raise RequestRejected("there is nothing to fix: no author was asked before")
    if isinstance(request, AlternativeRequest):
        asked = [each for _, each in requests if isinstance(each, RewardRequest)]
        if not asked:
            raise RequestRejected("there is nothing to vary: no reward was asked for before")
        return review.vary(asked[-1], request)
    roles: Mapping[str, Callable[[Any], Record]] = {
        "environment_chooser": criteria.choose_environment,
        "intent_elicitor": criteria.write_criteria,
        "reward_author": reward.write_reward,
        "judge_author": judge.write_judge,
        "reward_reviewer": review.review_reward,
        "judge_reviewer": review.review_judge,
        "visual_judge": judge.reject_pictures,
        "synthesiser": judge.synthesise,
        "session_analyzer": review.analyze_session,
    }
    return roles[role](request)
