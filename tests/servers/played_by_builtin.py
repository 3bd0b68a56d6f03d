"""A provider's model that answers like the built-in author: whole sessions over any protocol.

    with ModelServer(played_by_builtin) as server: ...

It reads the request blocks from the HTTP request, as the built-in author reads them from messages.
What the built-in author cannot do (look at frames) it refuses with status 400.
"""

from __future__ import annotations

from model_servers import Answer, Failure, Reply
from model_wire import Received

from p2p.agents.builtin import answer_request, requests_in
from p2p.inference.question import InferenceError

REWORDED = " (in other words)"
"""Behind every measure, so that no rule measures it to the letter and a judge has to be written."""


def played_by_builtin(received: Received) -> Reply:
    """What the built-in author says to this request."""
    try:
        texts = [text.replace(REWORDED, "") for text in received.user_texts]
        answer = answer_request(requests_in(texts))
    except InferenceError as error:
        return Failure(400, str(error))
    value = answer.model_dump(mode="json")
    role, request = received.block
    if role == "intent_elicitor" and value["criteria"]:
        # What was asked for has them already, such as "never drops the pole".
        value["left_out"] = dict.fromkeys(request.get("usual", {}), "asked for already")
        for criterion in value["criteria"]:
            criterion["measure"] += REWORDED
    return Answer(value)


def too_easy_at_first(received: Received) -> Reply:
    """The same, but its first criteria are met by whatever the robot does."""
    reply = played_by_builtin(received)
    role, request = received.block
    if role == "intent_elicitor" and "rejected" not in request and isinstance(reply, Answer):
        for criterion in reply.value["criteria"]:
            criterion["threshold"] = 1e-3 if criterion["comparison"] == "at_least" else 1e6
    return reply
