"""The real SDKs against loopback servers that speak the providers' protocols."""

from __future__ import annotations

import io

import pytest
from greeting import Greeting, question
from model_servers import Answer, answering
from model_wire import Call, Content
from PIL import Image

from p2p.event_log import EventLog, read_events, use_log
from p2p.inference.metered import LEAST_ANSWER
from p2p.inference.question import Media

HOSTED = ("anthropic", "openai", "google")
EVERY = (*HOSTED, "openrouter", "openai-compatible", "vllm", "ollama")


@pytest.mark.parametrize("provider", EVERY)
def test_a_typed_answer_comes_back(serve, client_for, provider):
    def answer(role, request):
        return {"text": f"{role} greets {request['name']}", "times": 2}

    server = serve(provider, answering(answer))
    answered = client_for(provider).ask(question())
    assert answered.value == Greeting(text="greeter greets Ada", times=2)
    assert answered.model == server.model(provider)
    [received] = server.requests
    assert "You greet." in received.everything


@pytest.mark.parametrize("provider", HOSTED)
def test_tools_are_called_and_their_results_sent_back(serve, client_for, provider):
    server = serve(
        provider,
        [Call("weather", {"city": "Paris"}), Answer({"text": "sunny", "times": 1})],
    )

    def weather(city: str) -> str:
        """The weather in a city."""
        return f"sun over {city}"

    client = client_for(provider)
    answered = client.ask(question(tools=(weather,), max_tool_calls=3))
    assert answered.value.text == "sunny"
    first, second = server.requests
    assert "weather" in first.tools
    assert "The weather in a city." in first.everything
    assert "sun over Paris" in second.everything
    assert "tool calls left: 2" in second.everything
    assert client.ledger.calls == 2


def picture(colour):
    stream = io.BytesIO()
    Image.new("RGB", (32, 24), colour).save(stream, "JPEG")
    return Media(stream.getvalue(), "image/jpeg")


@pytest.mark.parametrize("provider", EVERY)
def test_pictures_arrive_and_decode(serve, client_for, provider):
    server = serve(provider, [Answer({"text": "red, blue", "times": 2})])
    media = [picture("red"), picture("blue")]
    client_for(provider).ask(question(prompt=["First:", media[0], "second:", media[1]]))
    [received] = server.requests
    seen = [Image.open(io.BytesIO(data)) for kind, data in received.media if kind == "image/jpeg"]
    assert [image.size for image in seen] == [(32, 24)] * 2
    red, blue = (image.getpixel((5, 5)) for image in seen)
    assert red[0] > 200
    assert blue[2] > 200


@pytest.mark.parametrize("provider", HOSTED)
def test_a_conversation_goes_on_where_it_was(serve, client_for, provider):
    answers = [Answer({"text": "one", "times": 1}), Answer({"text": "two", "times": 2})]
    server = serve(provider, answers)
    client = client_for(provider)
    first = client.ask(question())
    second = client.ask(question(prompt="And again?", after=first.conversation))
    assert second.value.text == "two"
    assert len(server.requests[1].user_texts) >= 2
    assert '"one"' in server.requests[1].everything.replace("\\", "")


@pytest.mark.parametrize("provider", HOSTED)
def test_how_hard_to_think_is_told_to_the_model(serve, client_for, provider):
    server = serve(provider, lambda _: Answer({"text": "hm", "times": 1}))
    for effort in ("low", "high"):
        client_for(provider, thinking_effort=effort).ask(question(thinks=True))
    low, high = (received.everything.lower() for received in server.requests)
    assert '"low"' in low
    assert '"high"' in high


@pytest.mark.parametrize("provider", HOSTED)
def test_plain_question_is_asked_without_thinking(serve, client_for, provider):
    server = serve(provider, lambda _: Answer({"text": "hm", "times": 1}))
    for effort in ("high", "off"):
        client_for(provider, thinking_effort=effort).ask(question())
    assert not any('"high"' in received.everything.lower() for received in server.requests)


@pytest.mark.parametrize("effort", ["medium", "max"])
@pytest.mark.parametrize("model", ["claude-sonnet-5-5", "claude-sonnet-4-5"])
def test_thinking_has_room_beside_the_answer(serve, client_for, effort, model):
    """Older models are told a number of tokens, which must stay below those of the answer."""
    server = serve("anthropic", lambda _: Answer({"text": "hm", "times": 1}))
    client = client_for("anthropic", thinking_effort=effort).with_model(f"anthropic:{model}")
    assert client.ask(question(thinks=True)).value.text == "hm"
    [received] = server.requests
    thinking = received.body["thinking"]
    assert thinking["type"] in ("adaptive", "enabled")
    assert thinking.get("budget_tokens", 0) + LEAST_ANSWER <= received.body["max_tokens"]


def test_thinking_gives_way_where_the_budget_has_no_room_for_it(serve, client_for):
    server = serve("anthropic", lambda _: Answer({"text": "hm", "times": 1}))
    client = client_for("anthropic", thinking_effort="high", budget_usd=0.04)
    client = client.with_model("anthropic:claude-sonnet-4-5")
    assert client.ask(question(thinks=True)).value.text == "hm"
    [received] = server.requests
    assert received.body["thinking"]["budget_tokens"] == 1024
    assert received.body["max_tokens"] < 3000
    assert client.ledger.cost_usd <= 0.04


def test_a_model_that_cannot_be_told_to_think_is_named_once(serve, client_for, tmp_path):
    serve("openai-compatible", lambda _: Answer({"text": "hm", "times": 1}))
    with use_log(EventLog(tmp_path / "events.jsonl")):
        client = client_for("openai-compatible", thinking_effort="medium")
        client.ask(question(thinks=True))
        client.ask(question(prompt="Again.", thinks=True))
        client.ask(question())
    notes = [e for e in read_events(tmp_path / "events.jsonl") if e.event == "llm.no_thinking"]
    assert len(notes) == 1
    assert "has no setting for thinking effort" in notes[0].data["reason"]


WRITTEN = {
    "fenced": 'Here it is:\n```json\n{"text": "a ```fence``` inside", "times": 2}\n```\nDone.',
    "bare": '{"text": "a ```fence``` inside", "times": 2}\n',
    "raw line breaks": '```\n{"text": "a ```fence``` inside", "times":\n 2}\n```',
}


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("provider", ["anthropic", "openai", "openai-compatible"])
def test_answer_written_as_json_is_accepted(serve, client_for, provider, text):
    server = serve(provider, [Content(text), Answer({"text": "later", "times": 1})])
    client = client_for(provider)
    answered = client.ask(question())
    assert answered.value == Greeting(text="a ```fence``` inside", times=2)
    assert len(server.requests) == 1
    follow_up = client.ask(question(prompt="And again?", after=answered.conversation))
    assert follow_up.value.text == "later"
    # The next process takes it from its file.
    again = client_for(provider)
    assert again.ask(question()).value == answered.value
    assert len(server.requests) == 2


UNFINISHED = {
    "plain text": "Hello there!",
    "cut off": '```json\n{"text": "hi", "tim',
    "open fence": '```json\n{"text": "hi", "times": 2}',
    "a field is missing": '```json\n{"text": "hi"}\n```',
    "two of them": 'Either\n```json\n{"text": "a", "times": 1}\n```\nor\n'
    '```json\n{"text": "b", "times": 1}\n```',
    "more than the object": '{"text": "hi", "times": 2} or so',
}


@pytest.mark.parametrize("text", UNFINISHED.values(), ids=UNFINISHED)
@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_unfinished_json_answer_is_asked_again(serve, client_for, provider, text):
    server = serve(provider, [Content(text), Answer({"text": "whole", "times": 1})])
    assert client_for(provider).ask(question()).value.text == "whole"
    assert len(server.requests) == 2
