"""A server of our own: real processes, with a stand-in for `vllm` that speaks its protocol."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from greeting import question
from model_servers import CANARY
from processes import is_there, wait_until

from p2p.event_log import read_events
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import AskingCancelled, ProviderUnavailable
from p2p.inference.vllm_server import VLLMServer
from p2p.records.iteration_record import SessionRecord
from p2p.session.agents import SessionAgents
from p2p.session.request import loop_config
from p2p.settings import get_settings

pytestmark = pytest.mark.process

SERVERS = Path(__file__).parents[1] / "servers"

STAND_IN = f"""#!{sys.executable}
import os, signal, subprocess, sys, time
sys.path.insert(0, {str(SERVERS)!r})
command, model, _, host, _, port, *rest = sys.argv[1:]
mode = rest[0] if rest else ""
print("loading", model, flush=True)
print("variables:", *sorted(os.environ), flush=True)
if mode == "--broken":
    sys.exit("no such model on this planet")
if mode == "--stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended cleanly"))
worker = subprocess.Popen(["sleep", "300"])
print("worker", worker.pid, flush=True)
if mode == "--never-ready":
    time.sleep(300)
from model_servers import ModelServer, answering
with ModelServer(answering(lambda role, request: {{"text": model, "times": 1}}), int(port)):
    while True:
        time.sleep(0.1)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "vllm").write_text(STAND_IN)
    (folder / "vllm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("VLLM_PORT", str(port))
    get_settings.cache_clear()
    return tmp_path / "logs" / "vllm.log"


def worker_of(log: Path) -> int:
    lines = log.read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("worker")))


def test_vllm_server_answers_and_ends_its_workers(stand_in, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    get_settings.cache_clear()
    progress = []
    server = VLLMServer("some/model", log=stand_in, on_progress=progress.append)
    with server:
        client = LLMClient("vllm:some/model", folder=tmp_path / "llm")
        assert client.ask(question()).value.text == "some/model"
        worker = worker_of(stand_in)
        assert is_there(worker)
    assert progress
    assert not server.running
    assert not server.healthy()
    wait_until(lambda: not is_there(worker))
    log = stand_in.read_text()
    assert "ended cleanly" in log
    assert "PATH" in log
    assert "OPENAI_API_KEY" not in log
    server.stop()


def test_a_server_that_does_not_listen_is_killed(stand_in):
    server = VLLMServer("m", log=stand_in, arguments=("--stubborn",), stop_s=0.5)
    with server:
        worker = worker_of(stand_in)
    assert not server.healthy()
    wait_until(lambda: not is_there(worker))


def test_failed_vllm_start_is_reported_with_its_log(stand_in):
    server = VLLMServer("m", log=stand_in, arguments=("--broken",))
    server.start()
    with pytest.raises(ProviderUnavailable, match="no such model on this planet"):
        server.wait_ready()
    server.stop()


def test_vllm_that_is_never_ready_is_ended(stand_in):
    server = VLLMServer("m", log=stand_in, arguments=("--never-ready",), start_s=2.0)
    with pytest.raises(ProviderUnavailable, match="not ready after 2 s"):
        server.__enter__()
    assert not server.running


def test_starting_can_be_cancelled(stand_in):
    server = VLLMServer("m", log=stand_in, arguments=("--never-ready",), cancelled=lambda: True)
    with pytest.raises(AskingCancelled):
        server.__enter__()
    assert not server.running


def test_without_vllm_it_says_what_to_do(tmp_path):
    server = VLLMServer("m", log=tmp_path / "log", executable="vllm-that-is-not-there")
    with pytest.raises(ProviderUnavailable, match=r"not installed.*VLLM_HOST"):
        server.start()


def test_a_port_that_is_taken_is_said_so(stand_in):
    with (
        VLLMServer("m", log=stand_in),
        pytest.raises(ProviderUnavailable, match="something else answers"),
    ):
        VLLMServer("other", log=stand_in).start()


OWNER = """
import sys, time
from pathlib import Path
from p2p.inference.vllm_server import VLLMServer

with VLLMServer("m", log=Path(sys.argv[1])):
    print("ready", flush=True)
    time.sleep(300)
"""


def test_vllm_server_ends_with_a_killed_owner(stand_in):
    argv = [sys.executable, "-c", OWNER, str(stand_in)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        worker = worker_of(stand_in)
        owner.kill()
    wait_until(lambda: not is_there(worker))
    # The server ends a moment after its worker.
    wait_until(lambda: not VLLMServer("m", log=stand_in).healthy())


def session_with(model, tmp_path) -> SessionAgents:
    record = SessionRecord(tmp_path / "session_v")
    loop = loop_config("Hopper-v5", model="builtin", vlm_model=model, use_code_judge=False)
    return SessionAgents(record, loop)


def test_session_starts_and_ends_its_vllm_server(stand_in, tmp_path):
    agents = session_with("vllm-some/model", tmp_path)
    eyes = agents.vlm
    assert eyes is not None
    assert eyes.ask(question()).value.text == "some/model"
    worker = worker_of(agents.session.path / "vllm.log")
    # Another session uses what answers, and leaves it running.
    other = session_with("vllm:some/model", tmp_path / "other")
    assert other.vlm is not None
    other.close()
    assert is_there(worker)
    agents.close()
    wait_until(lambda: not is_there(worker))
    events = {event.event: event.data for event in read_events(agents.session.events_path)}
    assert "vLLM is starting with some/model" in events["llm.wait"]["reason"]
    assert {"vllm.ready", "vllm.stopped"} <= events.keys()
    assert not read_events(other.session.events_path)


@pytest.mark.parametrize("host", ["127.0.0.1", "vllm.example"])
def test_session_starts_no_vllm_where_it_cannot(stand_in, tmp_path, monkeypatch, host):
    monkeypatch.setenv("VLLM_HOST", host)
    if host == "127.0.0.1":
        monkeypatch.setenv("PATH", "/nowhere")
    get_settings.cache_clear()
    agents = session_with("vllm:some/model", tmp_path)
    assert agents.vlm is not None
    assert not (agents.session.path / "vllm.log").exists()
    agents.close()
