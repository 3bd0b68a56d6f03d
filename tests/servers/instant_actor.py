"""An actor that answers at once: what VLLMActor does, without a model."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable

from unstable.engines import Completion, EngineError

END = 256
Answer = Callable[[str, random.Random], str]


def board_of(prompt: str) -> str:
    """The short board of TicTacToe that stands last in the prompt."""
    boards: list[str] = re.findall(r"[0Aa][1Bb][2Cc][3Dd][4Ee][5Ff][6Gg][7Hh][8Ii]", prompt)
    return boards[-1]


def empty_cell(prompt: str, rng: random.Random) -> str:
    """A legal move on that board."""
    return f"\\boxed{{{rng.choice([cell for cell in board_of(prompt) if cell.isdigit()])}}}"


def nonsense(prompt: str, rng: random.Random) -> str:
    return f"I resign {rng.random()}"


def listed_move(prompt: str, rng: random.Random) -> str:
    """One of the moves that TextArena lists last: TicTacToe and SimpleTak do."""
    moves = re.findall(r"\[\d+\]", prompt.rpartition("Available")[2])
    return f"\\boxed{{{rng.choice(moves)}}}"


class InstantActor:
    """Tokens are the bytes of what `answer` makes of the prompt and the request's seed."""

    def __init__(self, answer: Answer = empty_cell, *, delay: Callable[[int], int] | None = None):
        self.answer = answer
        self.delay = delay
        """How many turns of the event loop request `n` takes."""
        self.requests: list[tuple[str, str | None, int | None]] = []
        self.fail: Callable[[int], bool] = lambda number: False
        self.broken_adapters: set[str | None] = set()
        self.closed = False

    async def generate(
        self,
        prompt: str,
        lora_path: str | None = None,
        *,
        seed: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
    ) -> Completion:
        number = len(self.requests)
        self.requests.append((prompt, lora_path, seed))
        for _ in range(self.delay(number) if self.delay else 1):
            await asyncio.sleep(0)
        if self.fail(number) or lora_path in self.broken_adapters:
            raise EngineError(f"request {number} is not answered")
        text = self.answer(prompt, random.Random(f"{seed}/{lora_path}"))
        tokens = (*text.encode(), END)
        return Completion(
            tokens, (-1.0,) * len(tokens), "stop", text, prompt_ids=tuple(prompt.encode())
        )

    async def ping(self) -> str:
        return "pong"

    async def close(self) -> None:
        self.closed = True
