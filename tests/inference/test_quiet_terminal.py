"""Asking a model writes nothing to the terminal: it is the session's own."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

from model_servers import Answer, ModelServer

ASK = """
import sys
from pathlib import Path
from pydantic import BaseModel
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import Question

class Reply(BaseModel):
    text: str

client = LLMClient(sys.argv[1], folder=Path(sys.argv[2]))
print(client.ask(Question(role="r", instructions="i", prompt="p", output=Reply)).value.text)
"""


def test_nothing_but_our_own_words_reaches_a_terminal(tmp_path: Path) -> None:
    with ModelServer([Answer({"text": "hello"})]) as server:
        process, terminal = pty.fork()
        if process == 0:
            for name in ("PYTEST_VERSION", "PYTEST_CURRENT_TEST", "CI"):
                os.environ.pop(name, None)
            os.environ.update(server.environment("anthropic"))
            arguments = [sys.executable, "-c", ASK, server.model("anthropic"), str(tmp_path)]
            os.execv(sys.executable, arguments)  # noqa: S606
        told = b""
        try:
            while chunk := os.read(terminal, 4096):
                told += chunk
        except OSError:  # the other side of the terminal is closed
            pass
        os.close(terminal)
        assert os.waitpid(process, 0)[1] == 0, told
    assert told.decode().split() == ["hello"]
