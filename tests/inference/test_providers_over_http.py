"""The real SDKs against loopback servers that speak the providers' protocols."""

from __future__ import annotations

import io

import pytest
from greeting import Greeting, question
from model_servers import Answer, answering
from model_wire import Call, Content
from PIL import Image

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
        client_for(provider, thinking_effort=effort).ask(question())
    low, high = (received.everything.lower() for received in server.requests)
    assert '"low"' in low
    assert '"high"' in high


@pytest.mark.parametrize("provider", HOSTED)
def test_text_instead_of_an_answer_is_asked_again(serve, client_for, provider):
    server = serve(provider, [Content("Hello there!"), Answer({"text": "hi", "times": 1})])
    assert client_for(provider).ask(question()).value.text == "hi"
    assert len(server.requests) == 2
