"""The judge that looks at a video, and the synthesis where it and the code judge differ."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from p2p.agents.judging.episodes import cut, film, trajectory_columns
from p2p.agents.judging.frames import Film, Pictures, pictures
from p2p.agents.judging.judge_code import run_check
from p2p.agents.judging.verdicts import (
    JudgedEpisode,
    Verdict,
    seen_scores,
    split_tags,
    with_other_tags,
)
from p2p.agents.requests import (
    Synthesis,
    SynthesisRequest,
    VisualRequest,
    VisualVerdict,
)
from p2p.contracts import Criterion, Intent
from p2p.event_log import emit
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import (
    AskAgain,
    BudgetExhausted,
    InferenceError,
    RequestRejected,
    Tool,
)
from p2p.prompts import question
from p2p.prompts.env_facts import body_facts, listing, overview, tags_text
from p2p.training.env_spec import get_env_spec
from p2p.training.specs.spec_text import camera_text
from p2p.training.trajectory import RecordedEpisode

MAX_CALLS = 3
"""Of tools, in all, for one episode."""


def look(
    vlm: LLMClient,
    intent: Intent,
    film: Film,
    trajectory: RecordedEpisode,
    *,
    look_at: str = "",
    amendments: tuple[str, ...] = (),
) -> tuple[VisualVerdict, str]:
    """What the model sees in an episode, asked about `look_at`, and what it was shown.

    Who refuses the video gets frames of it. Raises InferenceError.
    """
    shown = pictures(vlm.model, film)
    try:
        return _ask(vlm, intent, shown, trajectory, look_at, amendments), shown.summary
    except RequestRejected as error:
        if not shown.video:
            raise
        emit("vlm.video_refused", model=vlm.model, reason=str(error))
        frames = pictures(vlm.model, film, as_frames=True)
        note = f"{frames.summary}; the video was refused ({error})"
        return _ask(vlm, intent, frames, trajectory, look_at, amendments), note[:1000]


def _ask(
    vlm: LLMClient,
    intent: Intent,
    shown: Pictures,
    trajectory: RecordedEpisode,
    look_at: str,
    amendments: tuple[str, ...],
) -> VisualVerdict:
    spec = get_env_spec(intent.env_id)
    times = trajectory["timestamp"]
    request = VisualRequest(
        prompt=intent.prompt,
        env_id=intent.env_id,
        criteria=intent.criteria,
        camera=camera_text(spec),
        seconds=round(float(times[-1] - times[0]), 2),
        frames=shown.frames,
        question=look_at,
        amendments=amendments,
    )
    asked = question(
        "visual_judge",
        request,
        VisualVerdict,
        {"environment": overview(spec), "tags": tags_text()},
        media=shown.parts,
        check=lambda verdict: check_answer(verdict, intent.criteria),
    )
    return vlm.ask(asked).value


def check_answer(answer: VisualVerdict | Synthesis, criteria: Sequence[Criterion]) -> None:
    """Raises AskAgain unless each criterion is there once, no other, and no tag without a reason.

    A failure tag keeps a run from passing, so that it must follow from a criterion.
    """
    ids = [each.id for each in answer.criteria]
    expected = [criterion.id for criterion in criteria]
    wrong = [f"{name} is missing" for name in expected if name not in ids]
    wrong += [f"{name} is no criterion" for name in ids if name not in expected]
    wrong += [f"{name} is there twice" for name in sorted(set(ids)) if ids.count(name) > 1]
    hard = {criterion.id for criterion in criteria if criterion.hard}
    tags, _ = split_tags(answer.failure_tags)
    if tags and all(each.score == 1 for each in answer.criteria if each.id in hard):
        wrong.append(
            f"failure_tags has {', '.join(tags)}, but every hard criterion scores 1: lower the "
            "score of the one that is missed, or leave the tag out"
        )
    if wrong:
        raise AskAgain("; ".join(wrong))


def synthesise(
    client: LLMClient,
    vlm: LLMClient,
    intent: Intent,
    episode: JudgedEpisode,
    *,
    amendments: tuple[str, ...] = (),
) -> Verdict:
    """What is true of an episode with two opinions, by a model that has heard both.

    Raises InferenceError.
    """
    assert episode.code is not None
    assert episode.vlm is not None
    spec = get_env_spec(intent.env_id)
    request = SynthesisRequest(
        prompt=intent.prompt,
        env_id=intent.env_id,
        criteria=intent.criteria,
        code=episode.code,
        vlm=episode.vlm,
        calls_left=MAX_CALLS,
        amendments=amendments,
    )
    sections = {
        "environment": body_facts(spec),
        "columns": listing(trajectory_columns(spec)),
        "tags": tags_text(),
    }
    asked = question(
        "synthesiser",
        request,
        Synthesis,
        sections,
        tools=_tools(vlm, intent, episode),
        max_tool_calls=MAX_CALLS,
        check=lambda answer: check_answer(answer, intent.criteria),
    )
    answer = client.ask(asked).value
    diagnosis, tags = with_other_tags(answer.diagnosis, answer.failure_tags)
    return Verdict(
        criteria=seen_scores(answer.criteria, intent.criteria, episode.code.criteria),
        diagnosis=diagnosis,
        failure_tags=tags,
        confidence=answer.confidence,
        amendment=" ".join(answer.amendment.split())[:1000],
    )


def _tools(vlm: LLMClient, intent: Intent, episode: JudgedEpisode) -> tuple[Tool, ...]:

    def reask_vlm(question: str, start_s: float, end_s: float) -> str:
        """Show a part of the episode again to the judge that looks, with a question.

        Args:
            question: What to look at.
            start_s: Where the part begins, in seconds from the start of the episode.
            end_s: Where it ends.
        """
        try:
            return _look_again(vlm, intent, episode.file, question, start_s, end_s)
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
        result = run_check(python_code, episode.file, episode.summary)
        return f"{description[:200]}: {result}"

    return reask_vlm, run_trajectory_check


def _look_again(
    vlm: LLMClient, intent: Intent, trajectory: Path, look_at: str, start_s: float, end_s: float
) -> str:
    """A part of the episode, filmed anew and shown with a question."""
    whole = RecordedEpisode.load(trajectory)
    part = cut(whole, min(start_s, end_s), max(start_s, end_s))
    with tempfile.TemporaryDirectory(prefix="p2p-look-") as name:
        source = Path(name) / "trajectory_part.npz"
        part.save(source)
        [filmed] = film(intent.env_id, [source], intent.criteria)
        if filmed.problem:
            return f"It cannot be shown: {filmed.problem}"
        verdict, _ = look(vlm, intent, filmed, part, look_at=look_at)
    return verdict.model_dump_json()
