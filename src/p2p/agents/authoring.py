"""How code comes to be: drafted, run, reviewed, ranked, and mended by the one who wrote it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from p2p.agents.requests import CodeDraft, CodeReview, FixRequest
from p2p.contracts import AuthoredCode, AuthoringStep
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import AskAgain, BadReply, Conversation, Question
from p2p.prompts import build

MAX_FIXES = 5
MAX_RANKINGS_TOLD = 2
"""A wrong ranking is a strong hint, not an error: after so many the code is taken as it is."""
_FENCE = re.compile(r"\A\s*```[\w+-]*[ \t]*\n(.*?)\n?```\s*\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Report:
    """What running the code has shown."""

    problems: tuple[str, ...]
    measured: str = ""
    """For the reviewer."""


Check = Callable[[str], Report]
Review = Callable[[str, str], CodeReview]
"""(code, measured) to a verdict."""
Rank = Callable[[str], tuple[str, ...]]
"""What the code puts in the wrong order, in words."""


@dataclass
class Workshop:
    """A conversation with one author, the code as it stands, and the steps that led there."""

    client: LLMClient
    role: str
    instructions: str
    prompt: str
    function: str
    """What the code must define."""
    code: str = ""
    explanation: str = ""
    author: str = ""
    steps: list[AuthoringStep] = field(default_factory=list)
    _conversation: Conversation | None = None
    _own: str = ""  # the author's own last draft

    def draft(self) -> None:
        """Ask for the first version."""
        self._ask(self.prompt, "draft")

    def take(self, code: str, author: str) -> None:
        """Begin with code that someone else wrote."""
        self.code, self.author = tidy_code(code), author
        self._step("draft", ok=True, text=f"by {author}", code=self.code)

    def run(self, check: Check, review: Review | None, rank: Rank | None) -> AuthoredCode:
        """Check, review and rank; what is found goes back to the author, up to MAX_FIXES times."""
        good = ""
        told = 0
        for _ in range(MAX_FIXES + 1):
            problems, measured = self._check(self.code, check)
            if not problems:
                good = self.code
                if review is not None:
                    problems = self._review(review, check, measured)
                    review, good = None, self.code
                if not problems and rank is not None and told < MAX_RANKINGS_TOLD:
                    problems = self._rank(rank)
                    told += bool(problems)
            if not problems:
                return self._result(self.code, valid=True)
            if sum(step.kind == "fix" for step in self.steps) == MAX_FIXES:
                break
            if not self._fix(problems):
                break
        return self._result(good or self.code, valid=bool(good))

    def _check(self, code: str, check: Check) -> tuple[tuple[str, ...], str]:
        report = check(code)
        text = "\n".join(report.problems) or report.measured
        self._step("check", ok=not report.problems, text=text)
        return report.problems, report.measured

    def _review(self, review: Review, check: Check, measured: str) -> tuple[str, ...]:
        """Take the reviewer's code if it runs; else his findings are the author's problems."""
        try:
            verdict = review(self.code, measured)
        except BadReply as error:
            self._step("review", ok=False, text=f"there was no review: {error}")
            return ()
        corrected = tidy_code(verdict.code)
        findings = "\n".join(verdict.findings)
        if verdict.approved or not (findings or corrected) or corrected == self.code:
            self._step("review", ok=True, text=findings)
            return ()
        self._step("review", ok=False, text=findings, code=corrected)
        if not corrected:
            return verdict.findings
        problems, _ = self._check(corrected, check)
        if problems:
            return verdict.findings or problems
        self.code = corrected
        return ()

    def _rank(self, rank: Rank) -> tuple[str, ...]:
        problems = rank(self.code)
        self._step("ranking", ok=not problems, text="\n".join(problems))
        return problems

    def _fix(self, problems: Sequence[str]) -> bool:
        """Ask the author to mend it; False if nothing usable came."""
        shown = "" if self.code == self._own else self.code
        _, text = build("fix", FixRequest(problems=tuple(problems), code=shown))
        # Code that came from elsewhere: the author has to be told first what it is for.
        prompt = text if self._conversation else f"{self.prompt}\n\n{text}"
        try:
            self._ask(prompt, "fix")
        except BadReply as error:
            self._step("fix", ok=False, text=f"no correction came: {error}")
            return False
        return True

    def _ask(self, prompt: str, kind: str) -> None:
        question = Question(
            role=self.role,
            instructions=self.instructions,
            prompt=prompt,
            output=CodeDraft,
            check=lambda draft: defines(draft.code, self.function),
            after=self._conversation,
        )
        answer = self.client.ask(question)
        self._conversation, self.author = answer.conversation, answer.model
        self.code = self._own = tidy_code(answer.value.code)
        self.explanation = answer.value.explanation
        self._step(kind, ok=True, text=self.explanation, code=self.code)

    def _step(self, kind: str, *, ok: bool, text: str, code: str = "") -> None:
        step = {"kind": kind, "ok": ok, "text": text, "code": code}
        self.steps.append(AuthoringStep.model_validate(step))

    def _result(self, code: str, *, valid: bool) -> AuthoredCode:
        return AuthoredCode(
            code=code,
            explanation=self.explanation,
            author=self.author,
            valid=valid,
            steps=tuple(self.steps),
        )


def ask_review(
    client: LLMClient, role: str, instructions: str, prompt: str, function: str
) -> CodeReview:
    """A second pair of eyes: another conversation, which sees the code only."""

    def check(review: CodeReview) -> None:
        if not review.approved and not review.findings:
            raise AskAgain("`approved` is false, but `findings` is empty: say what is wrong")
        if review.code.strip():
            defines(review.code, function)

    question = Question(
        role=role, instructions=instructions, prompt=prompt, output=CodeReview, check=check
    )
    return client.ask(question).value


def tidy_code(text: str) -> str:
    """The code without a fence around it, ended by one line break; empty stays empty."""
    fenced = _FENCE.match(text)
    code = (fenced[1] if fenced else text).strip("\n").rstrip()
    return f"{code}\n" if code.strip() else ""


def defines(code: str, pattern: str) -> None:
    """Raises AskAgain if the code nowhere defines what is wanted."""
    if not re.search(pattern, tidy_code(code)):
        raise AskAgain("`code` is not the whole file: it does not define the function asked for")
