"""Asking: recorded, replayed, bounded in money and calls, stoppable, from any thread."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from greeting import HELLO, Greeting, question
from model_servers import CANARY, Answer, Failure, ModelServer, Slow, answering
from model_wire import Call, Content

from p2p.event_log import EventLog, read_events, use_log
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import (
    AskAgain,
    AskingCancelled,
    BadReply,
    BudgetExhausted,
    InferenceError,
    Media,
    RateLimited,
    RequestRejected,
    RetryPolicy,
)

FINE = Answer(HELLO)
COST = (100 * 2 + 50 * 10) / 1e6
"""Of a reply of the loopback server, at claude-sonnet-5-5's price."""


def exchanges(folder: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def test_builtin_answers_are_recorded_but_are_no_calls(tmp_path):
    client = LLMClient(
        "builtin", folder=tmp_path, builtin=lambda texts, refusals: Greeting(**HELLO)
    )
    answered = client.ask(question())
    assert (answered.value, answered.model) == (Greeting(**HELLO), "builtin")
    assert (client.ledger.calls, client.ledger.tokens, client.ledger.cost_usd) == (0, 0, 0.0)
    [exchange] = exchanges(tmp_path)
    assert exchange["call"]["file"] == "0001_greeter.json"


def test_exchange_is_kept_in_file_and_event(serve, client_for, tmp_path):
    serve("anthropic", [FINE])
    with use_log(EventLog(tmp_path / "events.jsonl")):
        client = client_for("anthropic")
        client.ask(question(prompt=["Look:", Media(b"\xff\xd8 not a real one", "image/jpeg")]))
    [exchange] = exchanges(tmp_path / "llm")
    call = exchange["call"]
    assert call["cost_usd"] == pytest.approx(COST)
    assert (call["input_tokens"], call["output_tokens"], call["retries"]) == (100, 50, 0)
    assert "You greet." in json.dumps(exchange["request"])
    assert exchange["response"]["parts"][0]["args"] == HELLO
    picture = exchange["request"]["messages"][0]["parts"][-1]["content"][1]
    assert (picture["bytes"], len(picture["sha256"])) == (17, 64)
    [event] = read_events(tmp_path / "events.jsonl")
    assert event.event == "llm.call"
    assert event.data["file"] == "0001_greeter.json"
    assert event.duration_ms is not None
    assert "You greet." not in json.dumps(event.data)


def test_events_reach_the_session_from_threads_without_a_context(serve, client_for, tmp_path):
    serve("anthropic", [FINE])
    with use_log(EventLog(tmp_path / "events.jsonl")):
        client = client_for("anthropic")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(client.ask, question()).result()
    assert [event.event for event in read_events(tmp_path / "events.jsonl")] == ["llm.call"]


# --- asked again by a later process -----------------------------------------------------------


@pytest.mark.parametrize("provider", ["anthropic", "google"])
def test_replayed_conversation_costs_nothing(serve, client_for, provider):
    script = [Answer({"text": "hello", "times": "x"}), FINE, Answer({"text": "bye", "times": 1})]
    server = serve(provider, script)

    def talk():
        client = client_for(provider)
        first = client.ask(question(prompt=["Look", Media(b"\xff\xd8 picture", "image/jpeg")]))
        second = client.ask(question(prompt="And goodbye?", after=first.conversation))
        return client, first.value.text, second.value.text

    client, *texts = talk()
    asked = len(server.requests)
    again, *same = talk()
    assert same == texts == ["hello", "bye"]
    assert len(server.requests) == asked == 3
    assert (
        (again.ledger.calls, again.ledger.tokens)
        == (client.ledger.calls, client.ledger.tokens)
        == (3, 450)
    )
    assert again.ledger.cost_usd == client.ledger.cost_usd


def test_replayed_tool_calls_cost_nothing_and_run(serve, client_for):
    server = serve("anthropic", [Call("count"), Call("count"), FINE])
    counted = []

    def count() -> str:
        """Count on."""
        counted.append(1)
        return "counted"

    for times in (2, 4):
        client_for("anthropic").ask(question(tools=(count,), max_tool_calls=5))
        assert len(counted) == times
        assert len(server.requests) == 3


def test_same_question_twice_replays_both_answers(serve, client_for):
    server = serve("anthropic", [Answer({"text": t, "times": 1}) for t in ("one", "two", "three")])
    client = client_for("anthropic")
    assert [client.ask(question()).value.text for _ in range(2)] == ["one", "two"]
    later = client_for("anthropic")
    assert [later.ask(question()).value.text for _ in range(3)] == ["one", "two", "three"]
    assert len(server.requests) == 3


def test_rejected_answers_are_not_replayed(serve, client_for, tmp_path):
    server = serve("anthropic", [*[Answer({"text": "no", "times": 1})] * 4, FINE])

    def check(value):
        if value.text == "no":
            raise AskAgain("say yes")

    with pytest.raises(BadReply):
        client_for("anthropic").ask(question(check=check))
    later = client_for("anthropic")
    assert later.ask(question(check=check)).value.text == "hello"
    assert len(server.requests) == 5
    assert later.ledger.calls == 5


def test_forget_asks_a_role_anew(serve, client_for):
    server = serve("anthropic", [Answer({"text": t, "times": 1}) for t in ("a", "b", "c")])
    client_for("anthropic").ask(question())
    client_for("anthropic").ask(question(role="other"))
    later = client_for("anthropic")
    later.forget("greeter")
    assert later.ask(question()).value.text == "b"
    assert len(server.requests) == 2
    assert client_for("anthropic").ask(question()).value.text == "b"
    assert len(server.requests) == 2


def test_failed_question_continues_from_its_answers(serve, client_for):
    down = Failure(429, "later", {"Retry-After": "3600"})
    server = serve("anthropic", [Call("look"), down, FINE])

    def look() -> str:
        """Look."""
        return "nothing"

    client = client_for("anthropic")
    asked = question(tools=(look,), max_tool_calls=1)
    with pytest.raises(RateLimited):
        client.ask(asked)
    assert client.ask(asked).value.text == "hello"
    assert len(server.requests) == 3


def test_damaged_exchange_is_reported(serve, client_for, tmp_path):
    serve("anthropic", [FINE])
    client_for("anthropic").ask(question())
    (tmp_path / "llm" / "0001_greeter.json").write_text("{")
    with pytest.raises(InferenceError, match=r"0001_greeter\.json is damaged"):
        client_for("anthropic")


ASK_THREE_TIMES = """
import sys
from pathlib import Path
from greeting import question
from p2p.inference.llm_client import LLMClient

client = LLMClient(sys.argv[1], folder=Path(sys.argv[2]))
print(*(client.ask(question(prompt=f"Number {i}")).value.text for i in range(3)))
"""


@pytest.mark.process
def test_killed_client_asks_only_the_open_question_again(tmp_path):
    reached = threading.Event()

    def script(received):
        number = received.user_texts[-1].split()[-1]
        if number == "2" and not reached.is_set():
            reached.set()
            return Slow(60, FINE)
        return Answer({"text": f"n{number}", "times": 1})

    with ModelServer(script) as server:
        path = os.pathsep.join([str(Path(__file__).parents[1] / "servers"), *sys.path])
        environment = {**os.environ, **server.environment("anthropic"), "PYTHONPATH": path}
        argv = [sys.executable, "-c", ASK_THREE_TIMES, server.model("anthropic"), str(tmp_path)]
        with subprocess.Popen(argv, env=environment, cwd=tmp_path) as process:
            assert reached.wait(60)
            process.kill()
        assert len(server.requests) == 3
        done = subprocess.run(
            argv, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True,
            timeout=60,
        )  # fmt: skip
        assert done.stdout.split() == ["n0", "n1", "n2"]
        assert len(server.requests) == 4


# --- money ------------------------------------------------------------------------------------


def test_budget_is_kept_and_can_be_raised(serve, client_for):
    server = serve("anthropic", lambda _: FINE)
    client = client_for("anthropic", budget_usd=0.02)

    def ask_on():
        for i in range(100):
            client.ask(question(prompt=f"Number {i}"))

    with pytest.raises(BudgetExhausted, match=r"\$0\.02 \$0\.0.* is left"):
        ask_on()
    assert 0 < client.ledger.cost_usd <= 0.02
    asked = len(server.requests)
    assert 5 < asked < 30
    higher = client_for("anthropic", budget_usd=1.0)
    assert higher.ledger.cost_usd == client.ledger.cost_usd
    for i in range(asked + 1):
        higher.ask(question(prompt=f"Number {i}"))
    assert len(server.requests) == asked + 1


def test_parallel_questions_keep_the_budget(serve, client_for, tmp_path, monkeypatch):
    # An answer of 50 tokens costs $0.50, one that is as short as may be promised $10.24.
    dear = {"claude-sonnet-5-5": {"input": 0, "output": 10_000}}
    (tmp_path / "prices.json").write_text(json.dumps(dear))
    monkeypatch.setenv("P2P_PRICES", str(tmp_path / "prices.json"))
    under_way = threading.Semaphore(1)

    def script(_):
        assert under_way.acquire(blocking=False), "paid for twice over"
        time.sleep(0.1)
        under_way.release()
        return FINE

    server = serve("anthropic", script)
    client = client_for("anthropic", budget_usd=11.0)

    def ask(number):
        try:
            return client.ask(question(prompt=f"Number {number}")).value.text
        except BudgetExhausted:
            return "no money"

    with ThreadPoolExecutor(4) as pool:
        outcomes = sorted(pool.map(ask, range(4)))
    assert outcomes == ["hello", "hello", "no money", "no money"]
    assert len(server.requests) == 2
    assert client.ledger.cost_usd == pytest.approx(1.0)


def test_unknown_price_excludes_a_budget(serve, client_for, tmp_path):
    serve("openai-compatible", lambda _: FINE)
    with pytest.raises(RequestRejected, match="P2P_PRICES"):
        client_for("openai-compatible", budget_usd=1.0)
    assert client_for("openai-compatible").ask(question()).value.text == "hello"
    assert exchanges(tmp_path / "llm")[0]["call"]["cost_usd"] is None


def test_two_models_share_folder_and_budget(serve, client_for, tmp_path):
    serve("anthropic", lambda _: FINE)
    client = client_for("anthropic", budget_usd=0.1)
    other = client.with_model("anthropic:claude-opus-5-5")
    client.ask(question())
    other.ask(question())
    assert client.ledger.calls == other.ledger.calls == 2
    assert client.ledger.cost_usd == pytest.approx(COST + (100 * 4 + 50 * 20) / 1e6)
    assert [e["call"]["number"] for e in exchanges(tmp_path / "llm")] == [1, 2]


# --- threads, waits, stopping -----------------------------------------------------------------


def test_many_threads_may_ask_at_a_time(serve, client_for, tmp_path):
    serve("anthropic", answering(lambda _, request: {"text": request["name"], "times": 1}))
    client = client_for("anthropic")
    names = [f"name {i}" for i in range(12)]

    def ask(name):
        block = f'<request role="greeter">\n{json.dumps({"name": name})}\n</request>'
        return client.ask(question(prompt=block)).value.text

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, names)) == names
    assert [e["call"]["number"] for e in exchanges(tmp_path / "llm")] == list(range(1, 13))
    assert (client.ledger.calls, client.ledger.tokens) == (12, 1800)


@pytest.mark.parametrize("reply", [Slow(60, FINE), Failure(429, "wait", {"Retry-After": "60"})])
def test_cancelling_stops_a_request_and_a_wait(serve, client_for, reply):
    server = serve("anthropic", lambda _: reply)
    client = client_for("anthropic", cancelled=lambda: bool(server.requests))
    with pytest.raises(AskingCancelled):
        client.ask(question())
    assert len(server.requests) == 1


def test_ctrl_c_comes_through_a_request(serve, client_for):
    def script(_):
        os.kill(os.getpid(), signal.SIGINT)
        return Slow(60, FINE)

    serve("anthropic", script)
    with pytest.raises(KeyboardInterrupt):
        client_for("anthropic").ask(question())


def test_a_tool_may_ask_a_question_itself(serve, client_for):
    def script(received):
        if "inner" in received.user_texts[-1]:
            return Answer({"text": "from inside", "times": 1})
        return FINE if "from inside" in received.everything else Call("ask_inside")

    serve("anthropic", script)
    client = client_for("anthropic")

    def ask_inside() -> str:
        """Ask."""
        return client.ask(question(prompt="the inner question")).value.text

    assert client.ask(question(tools=(ask_inside,), max_tool_calls=1)).value.text == "hello"
    assert client.ledger.calls == 3


# --- tools ------------------------------------------------------------------------------------


def test_tool_calls_are_counted_one_by_one(serve, client_for):
    many = Content(calls=tuple(Call("look", {"where": str(i)}) for i in range(5)))
    server = serve("anthropic", [many, Call("look", {"where": "again"}), FINE])
    seen = []

    def look(where: str) -> str:
        """Look somewhere."""
        seen.append(where)
        return "nothing"

    client_for("anthropic").ask(question(tools=(look,), max_tool_calls=3))
    assert seen == ["0", "1", "2"]
    sent = server.requests[1].everything
    assert "tool calls left: 0" in sent
    assert sent.count("all 3 tool calls are used up") == 2


def test_a_model_that_never_stops_calling_tools_is_given_up(serve, client_for):
    server = serve("anthropic", lambda _: Call("look"))

    def look() -> str:
        """Look."""
        return "nothing"

    with pytest.raises(BadReply, match=r"no usable answer as greeter.*request_limit"):
        client_for("anthropic").ask(question(tools=(look,), max_tool_calls=2))
    assert len(server.requests) < 15


def test_tool_errors_and_long_results_reach_the_model(serve, client_for):
    server = serve("anthropic", [Call("fail"), Call("flood"), FINE])

    def fail() -> str:
        """Fail."""
        raise KeyError("no such iteration")

    def flood() -> str:
        """Say much."""
        return "x" * 1_000_000 + "the end"

    client_for("anthropic").ask(question(tools=(fail, flood), max_tool_calls=4))
    assert "KeyError: 'no such iteration'" in server.requests[1].everything.replace("\\", "")
    last = server.requests[2].everything
    assert "characters left out" in last
    assert "the end" in last
    assert len(last) < 40_000


# --- secrets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", ["anthropic", "openai", "google", "vllm", "ollama"])
def test_key_is_sent_in_header_and_written_nowhere(serve, client_for, provider, tmp_path):
    script = [
        Failure(500, f"cannot use {CANARY}"),
        Call("leak") if provider in ("anthropic", "openai", "google") else FINE,
        Answer({"text": f"your key is {CANARY}", "times": 1}),
    ]
    server = serve(provider, script)

    def leak() -> str:
        """Leak."""
        return f"the key is {CANARY}"

    tools = {"tools": (leak,), "max_tool_calls": 1} if isinstance(script[1], Call) else {}
    with use_log(EventLog(tmp_path / "events.jsonl")):
        client = client_for(provider)
        client.ask(question(prompt=f"My key is {CANARY}.", **tools))
    assert all(CANARY in " ".join(received.headers.values()) for received in server.requests)
    assert not any(CANARY in received.everything for received in server.requests)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 3
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]


def test_waits_do_not_outlast_the_retry_policy(serve, client_for, tmp_path):
    server = serve("anthropic", lambda _: Failure(500, "no"))
    retry = RetryPolicy(attempts=50, first_s=0.2, total_wait_s=1.0)
    log = EventLog(tmp_path / "events.jsonl")
    with use_log(log), pytest.raises(InferenceError):
        client_for("anthropic", retry=retry).ask(question())
    waits = [e.data["seconds"] for e in read_events(log.path) if e.event == "llm.wait"]
    assert sum(waits) <= 1.0
    assert len(server.requests) == len(waits) + 1
