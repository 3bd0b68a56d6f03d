"""Where the two judges differ: a model decides, and may ask either of them again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2p.agents.judging.columns import trajectory_columns
from p2p.agents.judging.footage import cut, film
from p2p.agents.judging.judge_code import run_check
from p2p.agents.judging.scores import split_tags
from p2p.agents.judging.texts import listing, tags_text
from p2p.agents.judging.verdicts import Verdict
from p2p.agents.judging.visual import check_ids, look
from p2p.agents.requests import Synthesis, SynthesisRequest
from p2p.contracts import CriterionScore, Intent, JudgeOpinion
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import BudgetExhausted, InferenceError, Question
from p2p.prompts import build
from p2p.prompts.env_facts import body_facts
from p2p.training.env_spec import get_env_spec
from p2p.training.trajectory import Trajectory

MAX_CALLS = 3
"""Of tools, in all, for one episode."""


@dataclass(frozen=True, slots=True)
class Case:
    """An episode with two opinions, and what is needed to look again."""

    intent: Intent
    code: JudgeOpinion
    vlm: JudgeOpinion
    trajectory: Path
    summary: dict[str, Any]
    unsafe_local: bool = False


def synthesise(client: LLMClient, eyes: LLMClient, case: Case) -> Verdict:
    """What is true, by a model that has heard both; raises InferenceError."""
    spec = get_env_spec(case.intent.env_id)
    request = SynthesisRequest(
        prompt=case.intent.prompt,
        env_id=case.intent.env_id,
        criteria=case.intent.criteria,
        code=case.code,
        vlm=case.vlm,
        calls_left=MAX_CALLS,
    )
    instructions, prompt = build(
        "synthesiser",
        request,
        environment=body_facts(spec),
        columns=listing(trajectory_columns(spec)),
        tags=tags_text(),
    )
    question = Question(
        role="synthesiser",
        instructions=instructions,
        prompt=prompt,
        output=Synthesis,
        tools=tools(eyes, case),
        max_tool_calls=MAX_CALLS,
        check=lambda answer: check_ids(answer.criteria, case.intent.criteria),
    )
    return _verdict(client.ask(question).value, case)


def tools(eyes: LLMClient, case: Case) -> tuple[Callable[..., str], ...]:
    """What the synthesis may use."""

    def reask_vlm(question: str, start_s: float, end_s: float) -> str:
        """Show a part of the episode again to the judge that looks, with a question.

        Args:
            question: What to look at.
            start_s: Where the part begins, in seconds from the start of the episode.
            end_s: Where it ends.
        """
        try:
            return look_again(eyes, case, question, start_s, end_s)
        except BudgetExhausted:
            raise
        except InferenceError as error:
            return f"The judge that looks gave no answer: {error}"

    def run_trajectory_check(python_code: str, description: str) -> str:
        """Run code on the recorded episode and see what it returns.

        Args:
            python_code: Defines check_fn(trajectory, summary), with numpy as np; trajectory["x"]
                is a column.
            description: What it is to find out.
        """
        found = run_check(
            python_code, case.trajectory, case.summary, unsafe_local=case.unsafe_local
        )
        return f"{description[:200]}: {found}"

    return reask_vlm, run_trajectory_check


def look_again(eyes: LLMClient, case: Case, question: str, start_s: float, end_s: float) -> str:
    """A part of the episode, filmed anew and shown with a question."""
    whole = Trajectory.load(case.trajectory)
    part = cut(whole, min(start_s, end_s), max(start_s, end_s))
    with tempfile.TemporaryDirectory(prefix="p2p-look-") as name:
        source, video = Path(name) / "part.npz", Path(name) / "part.mp4"
        part.save(source)
        if problem := film(case.intent.env_id, [source], [video])[0]:
            return f"It cannot be shown: {problem}"
        seconds = float(part["timestamp"][-1] - part["timestamp"][0])
        verdict = look(eyes, case.intent, video, seconds=seconds, question=question)
    return verdict.model_dump_json()


def _verdict(answer: Synthesis, case: Case) -> Verdict:
    measured = {each.id: each.value for each in case.code.criteria}
    tags, others = split_tags(answer.failure_tags)
    also = f" Also: {', '.join(others)}." if others else ""
    return Verdict(
        criteria=tuple(
            CriterionScore(
                id=each.id,
                score=each.score,
                value=measured.get(each.id),
                evidence=each.evidence[:500],
            )
            for each in answer.criteria
        ),
        diagnosis=f"{answer.diagnosis}{also}"[:2000],
        failure_tags=tags,
        confidence=answer.confidence,
    )
