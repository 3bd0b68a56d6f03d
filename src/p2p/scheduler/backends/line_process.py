"""A process of ours that answers questions: one JSON object a line, in any order.

For libraries that must not live in the scheduler's own process. What a question and an answer are
is settled between the two; here they have numbers, time limits, and an end when the process ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TextIO

LONGEST_LINE = 64 * 1024 * 1024
LAST_WORDS = 2000


class LineError(Exception):
    """There is no answer: the process has ended, is silent, or says why it cannot."""


class LineSilence(LineError):
    """It did not answer in time."""


class LineProcess:
    """The side that asks. Started by the first question, and again by the next after its end.

    Args:
        command: the process; its standard error is kept for messages only.
        variables: its environment; None is ours.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        self._command = tuple(command)
        self._variables = variables
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._last_words = ""
        self._readers: list[asyncio.Task[None]] = []

    async def ask(self, method: str, patience_s: float, **arguments: Any) -> Any:
        """What the method returns there; raises LineError."""
        process = await self._started()
        assert process.stdin is not None
        self._number += 1
        number, waiting = self._number, self._waiting
        answer = waiting[number] = asyncio.get_running_loop().create_future()
        try:
            question = {"number": number, "method": method, "arguments": arguments}
            process.stdin.write(json.dumps(question).encode() + b"\n")
            async with asyncio.timeout(patience_s):
                with suppress(ConnectionError):  # its end is noticed by the one who reads
                    await process.stdin.drain()
                return await answer
        except TimeoutError:
            raise LineSilence(f"no answer for {patience_s:g} s") from None
        finally:
            waiting.pop(number, None)

    async def close(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                async with asyncio.timeout(5.0):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def _started(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=self._variables,
                    limit=LONGEST_LINE,
                    start_new_session=True,  # Ctrl-C is for the scheduler
                )
                self._waiting = {}  # those who asked the one before are told of its end
                self._readers = [
                    asyncio.create_task(self._read_answers(self._process, self._waiting)),
                    asyncio.create_task(self._read_complaints(self._process)),
                ]
            return self._process

    async def _read_answers(
        self, process: asyncio.subprocess.Process, waiting: dict[int, asyncio.Future[Any]]
    ) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            reply = json.loads(line)
            answer = waiting.get(reply["number"])
            if answer is None or answer.done():
                continue
            if "error" in reply:
                answer.set_exception(LineError(reply["error"]))
            else:
                answer.set_result(reply["result"])
        await process.wait()
        for answer in waiting.values():
            if not answer.done():
                said = self._last_words.strip() or f"code {process.returncode}"
                answer.set_exception(LineError(f"the process that asks has ended: {said}"))

    async def _read_complaints(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        self._last_words = ""
        while chunk := await process.stderr.read(65536):
            self._last_words = (self._last_words + chunk.decode(errors="replace"))[-LAST_WORDS:]


def answer_lines(
    methods: Mapping[str, Callable[..., Any]],
    expected: tuple[type[Exception], ...],
    *,
    threads: int = 32,
) -> None:
    """The side that answers: until standard input ends, a thread for each question.

    Args:
        methods: what can be asked, by name.
        expected: errors that are an answer; any other one ends the process.
        threads: questions at once.
    """
    lines = own_stdout()
    writing = threading.Lock()

    def answer(question: dict[str, Any]) -> None:
        reply = {"number": question["number"]}
        try:
            reply["result"] = methods[question["method"]](**question["arguments"])
        except expected as error:
            reply["error"] = str(error)
        with writing:
            lines.write(json.dumps(reply) + "\n")
            lines.flush()

    def end_if_failed(answered: Future[None]) -> None:
        if (error := answered.exception()) is not None:
            traceback.print_exception(error)
            os._exit(1)  # a thread cannot end the process otherwise

    with ThreadPoolExecutor(threads) as pool:
        for line in sys.stdin:
            pool.submit(answer, json.loads(line)).add_done_callback(end_if_failed)


def own_stdout() -> TextIO:
    """Standard output for our lines alone; what libraries print there goes to standard error."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return lines
