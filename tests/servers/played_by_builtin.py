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


def played_by_builtin(received: Received) -> Reply:
    """What the built-in author says to this request."""
    try:
        answer = answer_request(requests_in(received.user_texts))
    except InferenceError as error:
        return Failure(400, str(error))
    value = answer.model_dump(mode="json")
    role, request = received.block
    if role == "intent_elicitor" and value["criteria"]:
        # What goes without saying and what was asked for already says: "never drops the pole".
        given = {criterion["id"] for criterion in value["criteria"]}
        said = [each["id"] for each in request.get("usual", []) if each["id"] not in given]
        value["assumptions"] = [f"{name}: what was asked for says it already" for name in said]
    return Answer(value)
