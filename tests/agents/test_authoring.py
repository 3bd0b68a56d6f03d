"""How generated code comes to be: draft, check, review, ranking, fix; and where it ends."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from scripted_client import (
    Say,
    ScriptedClient,
    blocks,
    fixes,
    hopper_intent,
    in_turn,
    kinds,
    prompt_text,
)

from p2p.agents.authoring import MAX_FIXES, CheckOutcome, CodeAuthor
from p2p.agents.requests import CodeDraft, CodeReview, FixRequest, ReviewRequest, RewardRequest
from p2p.config import TrainConfig
from p2p.contracts import AuthoredCode
from p2p.utils.utils import parse_python, tidy_code


def code(number: int) -> str:
    return f"def reward_fn():\n    return {number}\n"


def drafts(*numbers: int) -> Say:
    return in_turn(*(CodeDraft(code=code(n), explanation=f"try {n}") for n in numbers))


class Author(CodeAuthor):
    """Its code fails if it is one of `bad`, and is ranked wrong if it is one of `wrong`."""

    role, reviewer, definition = "reward_author", "reward_reviewer", r"(?m)^def reward_fn"
    bad: tuple[int, ...] = ()
    wrong: tuple[int, ...] = ()

    def request(self) -> RewardRequest:
        return RewardRequest(prompt="stand", env_id="Hopper-v5", criteria=())

    def sections(self) -> dict[str, str]:
        return {"environment": "a hopper", "access": "all of it"}

    def check(self, text: str) -> CheckOutcome:
        problems = ("it fails",) if text in [code(n) for n in self.bad] else ()
        return CheckOutcome(problems, "measured")

    def rank(self) -> tuple[str, ...]:
        return ("wrong order",) if self.code in [code(n) for n in self.wrong] else ()


def written(
    client: ScriptedClient, *, bad: tuple[int, ...] = (), wrong: tuple[int, ...] = ()
) -> AuthoredCode:
    author = Author(client, hopper_intent(), TrainConfig(env_id="Hopper-v5"))
    author.bad, author.wrong = bad, wrong
    return author.write(review="reward_reviewer" in client.script)


def reviewed(*reviews: CodeReview) -> dict[str, Say]:
    return {"reward_author": drafts(0), "reward_reviewer": in_turn(*reviews)}


DEAD_TERM = CodeReview(approved=False, findings=("dead term",), code=code(1))


def test_what_cannot_be_repaired_is_invalid_and_all_of_it_is_kept() -> None:
    numbers = range(MAX_FIXES + 1)
    client = ScriptedClient({"reward_author": drafts(0), "fix": drafts(*numbers[1:])})
    authored = written(client, bad=tuple(numbers))
    assert not authored.valid
    assert len(client.asked) == 1 + MAX_FIXES
    assert kinds(authored) == [
        ("draft", True),
        *[("check", False), ("fix", True)] * MAX_FIXES,
        ("check", False),
    ]
    assert [step.code for step in authored.steps if step.code] == [code(n) for n in numbers]
    assert authored.code == code(MAX_FIXES)


def test_fixes_are_turns_of_one_conversation() -> None:
    client = ScriptedClient({"reward_author": drafts(0), "fix": drafts(1, 2)})
    authored = written(client, bad=(0, 1))
    assert (authored.code, authored.valid, authored.explanation) == (code(2), True, "try 2")
    first, second, third = client.asked
    assert second.after is not None
    assert second.after.messages == [first.prompt]
    assert third.after is not None
    assert third.after.messages == [first.prompt, second.prompt]
    assert {q.instructions for q in client.asked} == {first.instructions}
    assert [fix.code for fix in fixes(client)] == ["", ""]


def test_a_review_is_taken_if_its_code_runs() -> None:
    client = ScriptedClient(reviewed(DEAD_TERM))
    authored = written(client)
    request = blocks(prompt_text(client.asked[1]))[0][1]
    assert isinstance(request, ReviewRequest)
    assert (request.code, request.measured) == (code(0), "measured")
    assert (authored.code, authored.valid) == (code(1), True)
    assert kinds(authored) == [
        ("draft", True), ("check", True), ("review", False), ("check", True), ("ranking", True),
    ]  # fmt: skip
    changed = [line for line in authored.steps[2].diff.splitlines() if line[0] in "+-"]
    assert changed
    assert {line[1:] for line in changed} == {*code(0).splitlines()} ^ {*code(1).splitlines()}


def test_a_correction_that_does_not_run_goes_to_the_author_as_findings() -> None:
    client = ScriptedClient(reviewed(DEAD_TERM) | {"fix": drafts(2)})
    authored = written(client, bad=(1,))
    assert fixes(client) == [FixRequest(problems=("dead term",))]
    assert (authored.code, authored.valid) == (code(2), True)


def test_an_author_is_shown_code_that_a_reviewer_changed() -> None:
    client = ScriptedClient(reviewed(DEAD_TERM) | {"fix": drafts(2)})
    authored = written(client, wrong=(1,))
    assert fixes(client) == [FixRequest(problems=("wrong order",), code=code(1), ranking=True)]
    assert authored.code == code(2)


def test_a_review_that_never_comes_does_not_stop_the_work() -> None:
    authored = written(ScriptedClient(reviewed(CodeReview(approved=False))))
    assert authored.valid
    review = authored.steps[-2]
    assert (review.kind, review.ok) == ("review", False)
    assert "say what is wrong" in review.text


def test_a_reviewer_must_say_what_is_wrong_and_give_whole_code() -> None:
    partial = CodeReview(approved=False, findings=("dead",), code="return 1")
    client = ScriptedClient(reviewed(CodeReview(approved=False), partial, DEAD_TERM))
    assert written(client).code == code(1)
    assert "say what is wrong" in client.refusals[0]
    assert "not the whole file" in client.refusals[1]


def test_an_author_who_insists_on_his_ranking_is_let_through() -> None:
    client = ScriptedClient({"reward_author": drafts(0), "fix": drafts(1, 2)})
    authored = written(client, wrong=(0, 1, 2))
    assert (authored.code, authored.valid) == (code(2), True)
    assert [ok for kind, ok in kinds(authored) if kind == "ranking"] == [False, False]


def test_code_that_runs_outlives_fixes_that_do_not() -> None:
    client = ScriptedClient({"reward_author": drafts(0), "fix": drafts(1)})
    authored = written(client, bad=(1,), wrong=(0,))
    assert (authored.code, authored.valid) == (code(0), True)


def test_an_author_who_falls_silent_leaves_what_there_is() -> None:
    silent = in_turn(CodeDraft(code="no idea"))
    authored = written(ScriptedClient({"reward_author": drafts(0), "fix": silent}), bad=(0,))
    assert not authored.valid
    assert kinds(authored)[-1] == ("fix", False)


@pytest.mark.parametrize(
    ("text", "tidy"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("\n```\nx = 1\n\n```\n", "x = 1\n"),
        ("x = 1", "x = 1\n"),
        ("\n\n    x = 1\n", "    x = 1\n"),
        ("", ""),
        (" \n ", ""),
        ('s = """\n```\n"""\n', 's = """\n```\n"""\n'),
    ],
)
def test_code_is_taken_out_of_its_fence(text: str, tidy: str) -> None:
    assert tidy_code(text) == tidy


class _Yields:
    """When it is collected, another thread goes on."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0)


def test_threads_that_parse_at_once_do_not_meet() -> None:
    code = " + ".join(f"(x[{n}] * {{1: [2, (3, 4)]}}[1])" for n in range(60))

    def parse(_: int) -> int:
        _Yields()
        return len(parse_python(code).body)

    before = gc.get_threshold()
    gc.set_threshold(1)  # so that one is collected in the middle of parsing
    try:
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(parse, range(200))) == {1}
    finally:
        gc.set_threshold(*before)
