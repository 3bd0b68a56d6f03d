"""The judge that looks at a video, and the synthesis where it and the code judge differ."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2p.agents.judging.episodes import cut, film, trajectory_columns
from p2p.agents.judging.judge_code import run_check
from p2p.agents.judging.verdicts import Verdict, with_other_tags
from p2p.agents.requests import (
    SeenCriterion,
    Synthesis,
    SynthesisRequest,
    VisualRequest,
    VisualVerdict,
)
from p2p.contracts import Criterion, CriterionScore, Intent, JudgeOpinion
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import AskAgain, BudgetExhausted, InferenceError, Question
from p2p.inference.vlm import media_for
from p2p.prompts import build
from p2p.prompts.env_facts import body_facts, listing, overview, tags_text
from p2p.training.env_spec import get_env_spec
from p2p.training.specs.spec_text import camera_text
from p2p.training.trajectory import RecordedEpisode

MAX_FRAMES = 24
FPS = 4.0
"""Pictures for each second of an episode, up to MAX_FRAMES of them over the whole."""
MAX_CALLS = 3
"""Of tools, in all, for one episode."""


def look(
    vlm: LLMClient, intent: Intent, video: Path, *, seconds: float, question: str = ""
) -> VisualVerdict:
    """What the model sees in a video; `question`: what to look at. Raises InferenceError."""
    spec = get_env_spec(intent.env_id)
    media = media_for(vlm.model, video, max_frames=MAX_FRAMES, fps=FPS)
    pictures = sum(each.media_type.startswith("image/") for each in media)
    request = VisualRequest(
        prompt=intent.prompt,
        env_id=intent.env_id,
        criteria=intent.criteria,
        camera=camera_text(spec),
        seconds=round(seconds, 2),
        frames=pictures or max(1, min(MAX_FRAMES, round(seconds * FPS))),
        question=question,
    )
    instructions, text = build(
        "visual_judge", request, environment=overview(spec), tags=tags_text()
    )
    visual_question = Question(
        role="visual_judge",
        instructions=instructions,
        prompt=(text, *media),
        output=VisualVerdict,
        check=lambda verdict: check_ids(verdict.criteria, intent.criteria),
    )
    return vlm.ask(visual_question).value


def check_ids(seen: Sequence[SeenCriterion], criteria: Sequence[Criterion]) -> None:
    """Raises AskAgain unless each criterion is there once, and no other."""
    ids = [each.id for each in seen]
    expected = [criterion.id for criterion in criteria]
    wrong = [f"{name} is missing" for name in expected if name not in ids]
    wrong += [f"{name} is no criterion" for name in ids if name not in expected]
    wrong += [f"{name} is there twice" for name in sorted(set(ids)) if ids.count(name) > 1]
    if wrong:
        raise AskAgain("; ".join(wrong))


@dataclass(frozen=True, slots=True)
class Disagreement:
    """An episode with two opinions, and what is needed to look again."""

    intent: Intent
    code: JudgeOpinion
    vlm: JudgeOpinion
    trajectory: Path
    summary: dict[str, Any]
    unsafe_local: bool = False


def synthesise(client: LLMClient, vlm: LLMClient, case: Disagreement) -> Verdict:
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
        tools=tools(vlm, case),
        max_tool_calls=MAX_CALLS,
        check=lambda answer: check_ids(answer.criteria, case.intent.criteria),
    )
    return _verdict(client.ask(question).value, case)


def tools(vlm: LLMClient, case: Disagreement) -> tuple[Callable[..., str], ...]:
    """What the synthesis may use."""

    def reask_vlm(question: str, start_s: float, end_s: float) -> str:
        """Show a part of the episode again to the judge that looks, with a question.

        Args:
            question: What to look at.
            start_s: Where the part begins, in seconds from the start of the episode.
            end_s: Where it ends.
        """
        try:
            return look_again(vlm, case, question, start_s, end_s)
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
        result = run_check(
            python_code, case.trajectory, case.summary, unsafe_local=case.unsafe_local
        )
        return f"{description[:200]}: {result}"

    return reask_vlm, run_trajectory_check


def look_again(
    vlm: LLMClient, case: Disagreement, question: str, start_s: float, end_s: float
) -> str:
    """A part of the episode, filmed anew and shown with a question."""
    whole = RecordedEpisode.load(case.trajectory)
    part = cut(whole, min(start_s, end_s), max(start_s, end_s))
    with tempfile.TemporaryDirectory(prefix="p2p-look-") as name:
        source, video = Path(name) / "part.npz", Path(name) / "part.mp4"
        part.save(source)
        if problem := film(case.intent.env_id, [source], [video])[0]:
            return f"It cannot be shown: {problem}"
        seconds = float(part["timestamp"][-1] - part["timestamp"][0])
        verdict = look(vlm, case.intent, video, seconds=seconds, question=question)
    return verdict.model_dump_json()


def _verdict(answer: Synthesis, case: Disagreement) -> Verdict:
    measured = {each.id: each.value for each in case.code.criteria}
    diagnosis, tags = with_other_tags(answer.diagnosis, answer.failure_tags)
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
        diagnosis=diagnosis,
        failure_tags=tags,
        confidence=answer.confidence,
    )
