"""Small parts that backends for clusters are made of."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.scheduler import halves
from p2p.scheduler.backends.line_process import LineError, LineProcess
from p2p.scheduler.backends.owner import owner
from p2p.scheduler.backends.together import Together

ANSWERING = """
import os, time
from p2p.scheduler.backends.line_process import answer_lines

def slow(word):
    time.sleep(0.3)
    return word

def fail(error):
    print("this goes to nobody")
    raise {"value": ValueError("no such thing"), "key": KeyError("broken")}[error]

methods = {"slow": slow, "quick": lambda word: word.upper(), "fail": fail, "die": os._exit}
answer_lines(methods, (ValueError,))
"""


@given(st.dictionaries(st.text(min_size=1), st.text(), min_size=1))
def test_a_secret_is_whole_only_where_both_halves_are(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp("half")
    first, second = halves.cut(values)
    halves.lay_down(folder, first, second)
    other_first, other_second = halves.cut({"another": "job"})
    halves.lay_down(folder, other_first, other_second)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert halves.join(folder, first) == values
    with pytest.raises(FileNotFoundError):
        halves.join(folder, first)
    assert halves.join(folder, other_first) == {"another": "job"}
    halves.lay_down(folder, first, second)
    halves.sweep(folder)
    assert list(folder.iterdir()) == []


def test_neither_half_holds_anything_of_the_secret():
    secret = "sk-" + "x" * 200
    first, second = halves.cut({"KEY": secret})
    again, and_again = halves.cut({"KEY": secret})
    assert "xxx" not in first
    assert b"xxx" not in second
    assert first != again
    assert second != and_again


def test_a_runs_folder_keeps_its_name_and_two_have_different_ones(tmp_path):
    names = [owner(tmp_path / folder) for folder in ("one", "two", "one")]
    assert names[0] == names[2] != names[1]
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["owner"]


def test_what_comes_together_is_done_at_once_by_kind_and_not_beyond_the_limit():
    done: list[tuple[str, list[int]]] = []

    async def act(kind: str, values: list[int]) -> None:
        done.append((kind, values))
        if kind == "bad":
            raise OSError("refused")

    async def scenario() -> list[Any]:
        together = Together(act, wait_s=0.05, most=3)
        asked = [*(("good", n) for n in range(4)), ("bad", 4), ("bad", 5)]
        found = await asyncio.gather(
            *(together.add(*each) for each in asked), return_exceptions=True
        )
        await together.add("good", 6)
        return found

    found = asyncio.run(scenario())
    assert sorted(done) == [("bad", [4, 5]), ("good", [0, 1, 2]), ("good", [3]), ("good", [6])]
    assert found[:4] == [None] * 4
    assert [str(error) for error in found[4:]] == ["refused", "refused"]


def test_questions_are_answered_in_any_order_and_after_its_end_by_a_new_process():
    async def scenario() -> None:
        asked = LineProcess([sys.executable, "-c", ANSWERING])
        slow = asyncio.create_task(asked.ask("slow", 60, word="late"))
        assert await asked.ask("quick", 60, word="ä") == "Ä"
        assert not slow.done()
        assert await slow == "late"
        with pytest.raises(LineError, match="no such thing"):
            await asked.ask("fail", 60, error="value")
        with pytest.raises(LineError, match=r"no answer for 0\.01 s"):
            await asked.ask("slow", 0.01, word="too late")
        with pytest.raises(LineError, match="KeyError: 'broken'"):
            await asked.ask("fail", 60, error="key")
        with pytest.raises(LineError, match="has ended: code 3"):
            await asked.ask("die", 60, status=3)
        assert await asked.ask("slow", 60, word="again") == "again"
        await asked.close()

    asyncio.run(scenario())
