"""The judge that looks: one video, one opinion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from p2p.agents.judging.scores import split_tags, weighted_score
from p2p.agents.judging.texts import tags_text
from p2p.agents.judging.verdicts import out
from p2p.agents.requests import SeenCriterion, VisualRequest, VisualVerdict
from p2p.contracts import Criterion, CriterionScore, Intent, JudgeOpinion
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import AskAgain, Question
from p2p.inference.vlm import media_for
from p2p.prompts import build
from p2p.prompts.env_facts import overview
from p2p.training.env_spec import get_env_spec
from p2p.training.simulator import get_simulator

if TYPE_CHECKING:
    from p2p.training.specs.records import EnvSpec

MAX_FRAMES = 24
FPS = 4.0
"""Pictures for each second of an episode, up to MAX_FRAMES of them over the whole."""


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
        camera=get_simulator(spec.engine).get_camera_description(spec),
        seconds=round(seconds, 2),
        frames=pictures or max(1, min(MAX_FRAMES, round(seconds * FPS))),
        question=question,
    )
    instructions, text = visual_prompt(spec, request)
    asked = Question(
        role="visual_judge",
        instructions=instructions,
        prompt=(text, *media),
        output=VisualVerdict,
        check=lambda verdict: check_ids(verdict.criteria, intent.criteria),
    )
    return vlm.ask(asked).value


def visual_prompt(spec: EnvSpec, request: VisualRequest) -> tuple[str, str]:
    """Instructions and prompt, without the pictures."""
    return build("visual_judge", request, environment=overview(spec), tags=tags_text())


def opinion_of(verdict: VisualVerdict, criteria: Sequence[Criterion]) -> JudgeOpinion:
    """As an opinion; one that could tell nothing is not available."""
    scores = tuple(
        CriterionScore(id=each.id, score=each.score, evidence=each.evidence[:500])
        for each in verdict.criteria
    )
    score = weighted_score(scores, criteria)
    if score is None:
        return out("vlm", f"nothing could be told from the pictures: {verdict.diagnosis}")
    tags, others = split_tags(verdict.failure_tags)
    also = f" Also: {', '.join(others)}." if others else ""
    return JudgeOpinion(
        judge="vlm",
        available=True,
        score=score,
        criteria=scores,
        diagnosis=f"{verdict.diagnosis}{also}"[:2000],
        failure_tags=tags,
    )


def check_ids(seen: Sequence[SeenCriterion], criteria: Sequence[Criterion]) -> None:
    """Raises AskAgain unless each criterion is there once, and no other."""
    given = [each.id for each in seen]
    wanted = [criterion.id for criterion in criteria]
    wrong = [f"{name} is missing" for name in wanted if name not in given]
    wrong += [f"{name} is no criterion" for name in given if name not in wanted]
    wrong += [f"{name} is there twice" for name in sorted(set(given)) if given.count(name) > 1]
    if wrong:
        raise AskAgain("; ".join(wrong))
