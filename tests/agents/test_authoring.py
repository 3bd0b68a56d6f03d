"""The road of generated code: draft, check, review, ranking, fix; and where it ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scripted_client import Say, ScriptedClient, blocks, in_turn, prompt_text

from p2p.agents.authoring import MAX_FIXES, Report, Workshop, ask_review, tidy_code
from p2p.agents.requests import CodeDraft, CodeReview, FixRequest, ReviewRequest, RewardRequest
from p2p.contracts import AuthoredCode
from p2p.inference.question import BadReply
from p2p.prompts import request_block


def code(number: int) -> str:
    return f"def reward_fn():\n    return {number}\n"


def drafts(*numbers: int) -> Say:
    return in_turn(*(CodeDraft(code=code(n), explanation=f"try {n}") for n in numbers))


def fails_on(*numbers: int) -> Callable[[str], Report]:
    bad = {code(n) for n in numbers}
    return lambda text: Report(("it fails",) if text in bad else (), "measured")


def workshop(client: ScriptedClient) -> Workshop:
    request = RewardRequest(prompt="stand", env_id="Hopper-v5", criteria=())
    prompt = request_block("reward_author", request)
    return Workshop(client, "reward_author", "rules", prompt, r"(?m)^def reward_fn")


def kinds(authored: AuthoredCode) -> list[tuple[str, bool]]:
    return [(step.kind, step.ok) for step in authored.steps]


def fixes(client: ScriptedClient) -> list[FixRequest]:
    last = (blocks(prompt_text(question))[-1][1] for question in client.asked)
    return [request for request in last if isinstance(request, FixRequest)]


def test_what_cannot_be_mended_is_invalid_and_all_of_it_is_kept() -> None:
    numbers = range(MAX_FIXES + 1)
    client = ScriptedClient({"reward_author": drafts(0), "fix": drafts(*numbers[1:])})
    work = workshop(client)
    work.draft()
    authored = work.run(fails_on(*numbers), None, None)
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
    work = workshop(client)
    work.draft()
    authored = work.run(fails_on(0, 1), None, None)
    assert (authored.code, authored.valid, authored.explanation) == (code(2), True, "try 2")
    first, second, third = client.asked
    assert second.after is not None
    assert second.after.messages == [first.prompt]
    assert third.after is not None
    assert third.after.messages == [first.prompt, second.prompt]
    assert {q.instructions for q in client.asked} == {"rules"}
    assert [fix.code for fix in fixes(client)] == ["", ""]


def test_a_review_is_taken_if_its_code_runs() -> None:
    client = ScriptedClient({"reward_author": drafts(0)})
    work = workshop(client)
    work.draft()
    seen: list[tuple[str, str]] = []

    def review(text: str, measured: str) -> CodeReview:
        seen.append((text, measured))
        return CodeReview(approved=False, findings=("dead term",), code=code(1))

    authored = work.run(fails_on(), review, lambda text: ())
    assert seen == [(code(0), "measured")]
    assert (authored.code, authored.valid) == (code(1), True)
    assert kinds(authored) == [
        ("draft", True), ("check", True), ("review", False), ("check", True), ("ranking", True),
    ]  # fmt: skip


def test_a_correction_that_does_not_run_goes_to_the_author_as_findings() -> None:
    client = ScriptedClient({"reward_author": drafts(0), "fix": drafts(2)})
    work = workshop(client)
    work.draft()
    verdict = CodeReview(approved=False, findings=("dead term",), code=code(1))
    authored = work.run(fails_on(1), lambda *_: verdict, None)
    assert fixes(client) == [FixRequest(problems=("dead term",))]
    assert (authored.code, authored.valid) == (code(2), True)


def test_an_author_is_shown_code_that_a_reviewer_changed() -> None:
    client = ScriptedClient({"reward_author": drafts(0), "fix": drafts(2)})
    work = workshop(client)
    work.draft()
    verdict = CodeReview(approved=False, findings=("dead term",), code=code(1))
    wrong = {code(1): ("wrong order",)}
    authored = work.run(fails_on(), lambda *_: verdict, lambda text: wrong.get(text, ()))
    assert fixes(client) == [FixRequest(problems=("wrong order",), code=code(1))]
    assert authored.code == code(2)


def test_a_review_that_never_comes_does_not_stop_the_work() -> None:
    client = ScriptedClient({"reward_author": drafts(0)})
    work = workshop(client)
    work.draft()

    def review(text: str, measured: str) -> CodeReview:
        raise BadReply("only nonsense")

    authored = work.run(fails_on(), review, None)
    assert authored.valid
    assert kinds(authored)[-1] == ("review", False)
    assert "only nonsense" in authored.steps[-1].text


def test_a_reviewer_must_say_what_is_wrong_and_give_whole_code() -> None:
    request = ReviewRequest(prompt="", env_id="", criteria=(), code=code(0))
    prompt = request_block("reward_reviewer", request)
    good = CodeReview(approved=False, findings=("dead",), code=code(1))
    vague = CodeReview(approved=False)
    partial = CodeReview(approved=False, findings=("dead",), code="return 1")
    client = ScriptedClient({"reward_reviewer": in_turn(vague, partial, good)})
    assert ask_review(client, "reward_reviewer", "", prompt, r"def reward_fn") == good
    assert "say what is wrong" in client.refusals[0]
    assert "not the whole file" in client.refusals[1]


def test_an_author_who_insists_on_his_ranking_is_let_through() -> None:
    client = ScriptedClient({"reward_author": drafts(0), "fix": drafts(1, 2)})
    work = workshop(client)
    work.draft()
    authored = work.run(fails_on(), None, lambda text: ("wrong order",))
    assert (authored.code, authored.valid) == (code(2), True)
    assert [ok for kind, ok in kinds(authored) if kind == "ranking"] == [False, False]


def test_code_that_runs_outlives_fixes_that_do_not() -> None:
    client = ScriptedClient({"reward_author": drafts(0), "fix": drafts(1)})
    work = workshop(client)
    work.draft()
    authored = work.run(fails_on(1), None, lambda text: ("wrong order",))
    assert (authored.code, authored.valid) == (code(0), True)


def test_an_author_who_falls_silent_leaves_what_there_is() -> None:
    silent = in_turn(CodeDraft(code="no idea"))
    client = ScriptedClient({"reward_author": drafts(0), "fix": silent})
    work = workshop(client)
    work.draft()
    authored = work.run(fails_on(0), None, None)
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
