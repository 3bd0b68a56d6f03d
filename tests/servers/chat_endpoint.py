"""A real HTTP server on loopback that speaks as an OpenAI-compatible endpoint does."""

from __future__ import annotations

import json
import random
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar

from instant_actor import listed_move


class Endpoint(BaseHTTPRequestHandler):
    """Plays TicTacToe by TextArena's list of moves."""

    asked: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(body)
        text = listed_move(body["messages"][-1]["content"], random.Random(body["seed"]))
        usage = {"prompt_tokens": 100, "completion_tokens": 5, "cost": 0.001}
        answer = {"choices": [{"message": {"content": text}}], "usage": usage}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass
