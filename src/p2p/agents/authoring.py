"""How code comes to be: drafted, run, reviewed, ranked, and repaired by the one who wrote it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from itertools import islice
from typing import ClassVar

from p2p.agents.requests import CodeDraft, CodeReview, FixRequest, ReviewRequest
from p2p.config import TrainConfig
from p2p.contracts import AuthoredCode, AuthoringStep, Intent, Record
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import AskAgain, BadReply, Conversation, Question
from p2p.prompts import build, question
from p2p.utils.utils import tidy_code

MAX_FIXES = 5
MAX_RANKING_FIXES = 2
"""A wrong ranking is a strong hint, not an error: after so many the code is taken as it is."""


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """What running the code has shown."""

    problems: tuple[str, ...]
    measured: str = ""
    """For the reviewer."""


def diff_of(before: str, after: str) -> str:
    """Return what changed from one text to the other, without the names of files."""
    lines = unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return "\n".join(islice(lines, 2, None))


class CodeAuthor(ABC):
    """A conversation with one author, the code as it stands, and the steps that led there."""

    role: ClassVar[str]
    reviewer: ClassVar[str]
    """The role of who reviews it."""
    definition: ClassVar[str]
    """A pattern of what the code must define."""

    def __init__(self, client: LLMClient, intent: Intent, config: TrainConfig) -> None:
        self.client = client
        self.intent = intent
        self.config = config
        self.code = ""
        self.explanation = ""
        self.author = ""
        self.steps: list[AuthoringStep] = []
        self._conversation: Conversation | None = None
        self._own = ""  # the author's own last draft

    @abstractmethod
    def request(self) -> Record:
        """Return the request for the code."""

    @abstractmethod
    def sections(self) -> dict[str, str]:
        """Return what else stands in the author's prompt."""

    def review_sections(self) -> dict[str, str]:
        """Return what else stands in the reviewer's prompt."""
        return self.sections()

    @abstractmethod
    def check(self, code: str) -> CheckOutcome:
        """Run it in the sandbox."""

    def screen(self) -> tuple[str, ...] | None:
        """Return why the code must not be used although it runs, or None without screening."""
        return None

    def rank(self) -> tuple[str, ...] | None:
        """Return what the last checked code ranks wrongly, or None without a ranking."""
        return None

    def write(self, *, review: bool, code: str | None = None, author: str = "") -> AuthoredCode:
        """Ask for a draft, or begin with `code` of another author; then check, review and rank.

        What is found goes back to the author, up to MAX_FIXES times. Code that passes is kept as
        it is: where `code` does, and without a review, no model is asked.
        """
        if code is None:
            self._ask(self._question(), "draft")
        else:
            self.code, self.author = tidy_code(code), author
            self._step("draft", ok=True, text=f"by {author}", code=self.code)
        return self._revise_code(review=review)

    def _revise_code(self, *, review: bool) -> AuthoredCode:
        """Check, review and rank the code, and have it rewritten until it is accepted."""
        good = ""
        rankings = 0
        for _ in range(MAX_FIXES + 1):
            problems, measured = self._check(self.code)
            if not problems:
                if review:
                    problems, review = self._review(measured), False
                screened = self._screen()
                good = self.code if not screened else good
                if not problems:
                    ranked = self._rank() if rankings < MAX_RANKING_FIXES else ()
                    rankings += bool(ranked)
                    problems = (*ranked, *screened)
            if not problems:
                return self._result(self.code, valid=True)
            if sum(step.kind == "fix" for step in self.steps) == MAX_FIXES:
                break
            if not self._fix(problems):
                break
        return self._result(good or self.code, valid=bool(good))

    def _question(self) -> Question[CodeDraft]:
        return question(
            self.role,
            self.request(),
            CodeDraft,
            self.sections(),
            check=lambda draft: self._check_whole(draft.code),
        )

    def _check(self, code: str) -> tuple[tuple[str, ...], str]:
        outcome = self.check(code)
        text = "\n".join(outcome.problems) or outcome.measured
        self._step("check", ok=not outcome.problems, text=text)
        return outcome.problems, outcome.measured

    def _review(self, measured: str) -> tuple[str, ...]:
        """Take the reviewer's code if it runs; else the findings are the author's problems."""
        try:
            review = self._ask_reviewer(measured)
        except BadReply as error:
            self._step("review", ok=False, text=f"there was no review: {error}")
            return ()
        corrected = tidy_code(review.code)
        findings = "\n".join(review.findings)
        if review.approved or not (findings or corrected) or corrected == self.code:
            self._step("review", ok=True, text=findings)
            return ()
        self._step("review", ok=False, text=findings, code=corrected, before=self.code)
        if not corrected:
            return review.findings
        problems, _ = self._check(corrected)
        if problems:
            return review.findings or problems
        self.code = corrected
        return ()

    def _ask_reviewer(self, measured: str) -> CodeReview:
        """A second pair of eyes: another conversation, which sees the code only."""
        request = ReviewRequest(
            prompt=self.intent.prompt,
            env_id=self.config.env_id,
            criteria=self.intent.criteria,
            code=self.code,
            measured=measured,
        )

        def check(review: CodeReview) -> None:
            if not review.approved and not review.findings:
                raise AskAgain("`approved` is false, but `findings` is empty: say what is wrong")
            if review.code.strip():
                self._check_whole(review.code)

        sections = self.review_sections()
        asked = question(self.reviewer, request, CodeReview, sections, check=check)
        return self.client.ask(asked).value

    def _screen(self) -> tuple[str, ...]:
        problems = self.screen()
        if problems:
            self._step("ranking", ok=False, text="\n".join(problems))
        return problems or ()

    def _rank(self) -> tuple[str, ...]:
        problems = self.rank()
        if problems is not None:
            self._step("ranking", ok=not problems, text="\n".join(problems))
        return problems or ()

    def _fix(self, problems: Sequence[str]) -> bool:
        """Ask the author to repair it; False if nothing usable came."""
        shown = "" if self.code == self._own else self.code
        ranking = self.steps[-1].kind == "ranking"
        request = FixRequest(problems=tuple(problems), code=shown, ranking=ranking)
        try:
            self._ask(self._next_turn("fix", request), "fix")
        except BadReply as error:
            self._step("fix", ok=False, text=f"no correction came: {error}")
            return False
        return True

    def _next_turn(self, role: str, request: Record) -> Question[CodeDraft]:
        """A later turn of the conversation with the author."""
        _, text = build(role, request)
        draft = self._question()
        # Code that came from elsewhere: the author has to be told first what it is for.
        prompt = text if self._conversation else f"{draft.prompt}\n\n{text}"
        return replace(draft, prompt=prompt, after=self._conversation)

    def _ask(self, asked: Question[CodeDraft], kind: str) -> None:
        answer = self.client.ask(asked)
        before = self.code
        self._conversation, self.author = answer.conversation, answer.model
        self.code = self._own = tidy_code(answer.value.code)
        self.explanation = answer.value.explanation
        self._step(kind, ok=True, text=self.explanation, code=self.code, before=before)

    def _check_whole(self, code: str) -> None:
        if not re.search(self.definition, tidy_code(code)):
            raise AskAgain(
                "`code` is not the whole file: it does not define the function asked for"
            )

    def _step(self, kind: str, *, ok: bool, text: str, code: str = "", before: str = "") -> None:
        diff = diff_of(before, code) if before and code else ""
        step = {"kind": kind, "ok": ok, "text": text, "code": code, "diff": diff}
        self.steps.append(AuthoringStep.model_validate(step))

    def _result(self, code: str, *, valid: bool) -> AuthoredCode:
        return AuthoredCode(
            code=code,
            explanation=self.explanation,
            author=self.author,
            valid=valid,
            steps=tuple(self.steps),
        )
