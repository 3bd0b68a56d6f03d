"""A request is known again by what it says, and its files do not get into each other's way."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from p2p.contracts import ModelCall
from p2p.inference.ledger import (
    Ledger,
    dump_messages,
    dump_parameters,
    dump_response,
    read_response,
    request_key,
)


def conversation(*, call="a", text="Look.", picture=b"picture", result="seen", said="I see"):
    return [
        ModelRequest(
            [UserPromptPart([text, BinaryContent(picture, media_type="image/jpeg")])],
            instructions="You look.",
        ),
        ModelResponse(
            [TextPart(said), ToolCallPart("look", {"where": "left"}, tool_call_id=call)],
            provider_response_id=f"response {call}",
        ),
        ModelRequest([ToolReturnPart("look", result, tool_call_id=call)]),
    ]


def key(messages, model="m", tool="look", effort=""):
    offer = ModelRequestParameters(function_tools=[ToolDefinition(name=tool)])
    return request_key(model, dump_messages(messages), dump_parameters(offer), effort)


def test_the_same_words_have_the_same_key_whenever_they_are_said():
    assert key(conversation(call="a")) == key(conversation(call="quite another id"))


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ({"text": "Look!"}, {}),
        ({"picture": b"another"}, {}),
        ({"result": "not seen"}, {}),
        ({"said": "I do not see"}, {}),
        ({}, {"model": "n"}),
        ({}, {"tool": "hear"}),
        ({}, {"effort": "high"}),
    ],
)
def test_other_words_and_another_way_of_asking_have_another_key(said, asked):
    assert key(conversation()) != key(conversation(**said), **asked)


def test_messages_are_kept_without_their_pictures():
    text = json.dumps(dump_messages(conversation(picture=b"x" * 1000)))
    assert '"bytes": 1000' in text
    assert len(text) < 5000


def test_an_answer_reads_back_as_it_was():
    response = conversation()[1]
    read = read_response(json.loads(json.dumps(dump_response(response))))
    dump = ModelMessagesTypeAdapter.dump_python
    assert dump([read]) == dump([response])


def test_two_ledgers_on_one_folder_never_give_a_number_twice(tmp_path):
    ledgers = [Ledger(tmp_path), Ledger(tmp_path)]

    def record(i):
        call = ModelCall(number=0, role="asker of things/../x", model="claude", input_tokens=i)
        return ledgers[i % 2].record("key", call, {"response": {}})[0].number

    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(record, range(20)))
    assert sorted(numbers) == list(range(1, 21))
    names = {path.name for path in tmp_path.glob("*.json")}
    assert names == {f"{number:04d}_asker_of_things_x.json" for number in numbers}
    assert Ledger(tmp_path).tokens == sum(range(20))
