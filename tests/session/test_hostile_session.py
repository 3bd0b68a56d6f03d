"""Full sessions whose author writes code that attacks the machine it runs on."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from session_process import TWO_ROUNDS

from p2p.agents import builtin
from p2p.contracts import SessionResult
from p2p.event_log import EventLog, use_log
from p2p.inference.llm_client import LLMClient
from p2p.records.iteration_record import SessionRecord
from p2p.session.loop import run_loop
from p2p.session.phases import Work
from p2p.session.request import loop_config
from p2p.session.run_session import create_session
from p2p.session.thinking import AgentThinking

ATTACK = """
import random
os = random._os  # what reads the code first does not see it
hidden = __builtins__ if isinstance(__builtins__, dict) else vars(__builtins__)
fetch, file = hidden["__import__"], hidden["open"]

def attack():
    for act in (
        lambda: file({mark!r}, "w").write("written"),
        lambda: file({secret!r}).read() and file({mark!r} + ".read", "w"),
        lambda: fetch("socket").create_connection(("127.0.0.1", {port}), timeout=1),
        lambda: fetch("subprocess").run(["touch", {mark!r}]),
        lambda: os.kill(os.getppid(), 9),
    ):
        try:
            act()
        except BaseException:
            pass
"""
Attacked = Callable[..., tuple[SessionResult, SessionRecord]]

REWARD = "\nattack()\ndef reward_fn(obs, action, next_obs, info):\n    attack()\n    {then}\n"
JUDGE = "\nattack()\ndef judge_fn(trajectory, summary):\n    attack()\n    {then}\n"


@pytest.fixture
def attacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[SessionResult, SessionRecord]]:
    """Run a session in which these roles write this code; what it must not touch is beside it."""
    (tmp_path / "secret").write_text("private")
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    (tmp_path / "runtime").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))

    def run(codes: dict[str, str], **options: Any) -> tuple[SessionResult, SessionRecord]:
        head = ATTACK.format(
            mark=str(tmp_path / "mark"),
            secret=str(tmp_path / "secret"),
            port=listener.getsockname()[1],
        )

        def answer(messages: Any, info: Any) -> Any:
            response = builtin.answer(messages, info)
            role = re.findall(r'<request role="(\w+)">', str(messages))[0]
            part = response.parts[0]
            reply = json.loads(part.args)
            if role in codes and "code" in reply and reply.get("approved") is None:
                part.args = json.dumps({**reply, "code": head + codes[role]})
            return response

        train = {**TWO_ROUNDS["train"], "total_timesteps": 256, "num_evals": 1}
        quick = {**TWO_ROUNDS, "train": train, "review_reward": False, "review_judge": False}
        loop = loop_config("InvertedPendulum-v5", **{**quick, **options})
        session = create_session("balance", loop, session_id="session_h", runs_dir=tmp_path)
        config = session.config.read()
        assert config is not None
        with use_log(EventLog(session.events_path)):
            client = LLMClient("builtin", folder=session.llm_dir, builtin=answer)
        thinking = AgentThinking(session, loop, _client=client)
        result = run_loop(Work(session, config, thinking, judge_waits_s=()))
        assert not (tmp_path / "mark").exists()
        assert not (tmp_path / "mark.read").exists()
        with pytest.raises(BlockingIOError):  # nobody has come
            listener.accept()
        return result, session

    return run


def test_a_reward_that_attacks_and_dies_ends_as_invalid_code_with_everything_kept(
    attacked: Attacked,
) -> None:
    result, session = attacked({"reward_author": REWARD.format(then="os._exit(0)")})
    assert result.status == "invalid_code"
    reward = session.iteration(1).reward.read()
    assert reward is not None
    assert not reward.valid
    assert len(reward.steps) > 5
    assert "attack()" in session.iteration(1).read_reward_source()


def test_a_reward_that_attacks_and_pays_is_trained_in_the_sandbox(
    attacked: Attacked,
) -> None:
    then = "up = 1.0 - next_obs[..., 1] ** 2\n    return up, {'up': up}"
    result, session = attacked({"reward_author": REWARD.format(then=then)}, max_iterations=1)
    assert result.status in {"max_iterations", "passed"}, result.message
    assert session.iteration(1).read_judgment() is not None


def test_a_judge_that_attacks_and_dies_ends_as_invalid_code_before_training(
    attacked: Attacked,
) -> None:
    result, session = attacked({"judge_author": JUDGE.format(then="os._exit(0)")})
    assert result.status == "invalid_code"
    assert "no judge could be made to run" in result.message
    assert not session.iteration(1).runs()
