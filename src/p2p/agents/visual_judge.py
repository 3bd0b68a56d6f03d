"""The judge that looks: which frames of an episode it sees, its questions, and the synthesis."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2p.agents.judge_code import run_check, trajectory_columns
from p2p.agents.requests import (
    Synthesis,
    SynthesisRequest,
    VisualRequest,
    VisualVerdict,
)
from p2p.agents.verdicts import (
    JudgedEpisode,
    Verdict,
    add_other_tags,
    seen_scores,
    split_tags,
)
from p2p.contracts import Criterion, Intent
from p2p.event_log import emit
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import (
    AskAgain,
    BudgetExhausted,
    InferenceError,
    Media,
    RequestRejected,
    Tool,
)
from p2p.inference.vlm import frames_of, jpeg, takes_video, whole_video
from p2p.prompts import body_facts, listing, overview, question, tags_text
from p2p.training.env_spec import get_env_spec
from p2p.training.specs.spec_text import camera_text
from p2p.training.trajectory import RecordedEpisode

STRIP = 12
"""Frames over the whole episode."""
BURST_FPS = 8.0
BURST_S = 1.5
MAX_FRAMES = 36
"""An episode that has no more at BURST_FPS is shown whole at that rate."""

VIDEO_FRAMES = 200
"""Of a video for judges; a longer episode has fewer a second."""

WHOLE = "The whole episode"
INITIAL_FRAME = (
    "The first frame, with the names of the robot's bodies and the directions of the world's axes:"
)
MOTION_TRAIL = (
    "The whole episode in one picture: its poses at equal times, from blue (first) to red (last). "
    "Long travel is drawn shortened:"
)


@dataclass(frozen=True, slots=True)
class FrameGroup:
    """Frames that belong together."""

    title: str
    rows: tuple[int, ...]
    """Of the trajectory."""
    times: tuple[float, ...]
    """Of these rows, in seconds."""


@dataclass(frozen=True, slots=True)
class Film:
    """The files that were drawn of an episode; with a `problem` they are not all there."""

    frames: Path
    """A video of the frames of the groups alone, in their order."""
    groups: tuple[FrameGroup, ...]
    video: Path | None = None
    """Of the whole episode, where it was asked for."""
    initial_frame: Path | None = None
    motion_trail: Path | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Pictures:
    """What goes with a question, each piece after a line that says what it is."""

    parts: tuple[str | Media, ...]
    summary: str
    """The same for people: `12 frames of the whole episode; ...`."""
    video: bool
    """Whether the whole video is among them."""

    @property
    def frames(self) -> int:
        return sum(isinstance(part, Media) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of an episode that is worth many frames."""

    start_s: float
    end_s: float
    reason: str


def frame_groups(
    trajectory: RecordedEpisode, criteria: Sequence[Criterion]
) -> tuple[FrameGroup, ...]:
    """The whole episode, then its bursts; a short one is dense enough without."""
    times = trajectory["timestamp"].astype(np.float64)
    dense = _rows(times, float(times[0]), float(times[-1]), BURST_FPS)
    if len(dense) <= MAX_FRAMES:
        groups = [(WHOLE, dense)]
    else:
        whole = ((np.arange(STRIP) + 0.5) * len(times) / STRIP).astype(int)
        groups = [(WHOLE, tuple(whole.tolist()))]
        for each in stretches(trajectory, criteria):
            span = f"From {each.start_s:.2f} to {each.end_s:.2f} s"
            title = f"{span} at {BURST_FPS:g} frames a second, {each.reason}"
            groups.append((title, _rows(times, each.start_s, each.end_s, BURST_FPS)))
    return tuple(FrameGroup(title, rows, tuple(times[list(rows)])) for title, rows in groups)


def _rows(times: NDArray[np.float64], start_s: float, end_s: float, fps: float) -> tuple[int, ...]:
    """The rows nearest to the middles of equal intervals, each once."""
    count = max(1, round((end_s - start_s) * fps))
    wanted = start_s + (np.arange(count) + 0.5) * (end_s - start_s) / count
    return tuple(sorted({int(np.abs(times - at).argmin()) for at in wanted}))


def pictures(model: str, film: Film, *, as_frames: bool = False) -> Pictures:
    """What to show this model: the video where it takes one, unless `as_frames`; else frames.

    A video that the model looks at less closely than a burst comes with the bursts.
    Raises RequestRejected for a model that cannot see, or a video that cannot be read.
    """
    stills = {INITIAL_FRAME: film.initial_frame, MOTION_TRAIL: film.motion_trail}
    parts = [part for text, path in stills.items() if path for part in (text, _still(path))]
    told = [path.stem.partition("_")[0] for path in stills.values() if path]
    video = None if as_frames else whole_video(model, film.video, BURST_FPS)
    groups, left = film.groups, frames_of(film.frames)
    if video is not None:
        parts += ["The whole episode as a video:", video]
        told.append("the whole video")
        dense = video.fps is not None and video.fps >= BURST_FPS
        left, groups = left[len(groups[0].rows) :], () if dense else groups[1:]
    for group in groups:
        shown, left = left[: len(group.rows)], left[len(group.rows) :]
        parts.append(f"{group.title}:")
        for seconds, data in zip(group.times, shown, strict=True):
            parts += [f"{seconds:.2f} s", Media(data, "image/jpeg")]
        told.append(f"{group.title[0].lower()}{group.title[1:]} ({len(shown)} frames)")
    return Pictures(tuple(parts), "; ".join(told), video is not None)


def stretches(trajectory: RecordedEpisode, criteria: Sequence[Criterion]) -> list[Stretch]:
    """Return where an episode changes most, and where it is most typical.

    Change is that of what the criteria name, if they name columns or bodies, else of heights,
    postures and speeds; averaged over a stretch, so that a gait counts as no change.
    """
    times = trajectory["timestamp"].astype(np.float64)
    span = float(times[-1] - times[0])
    if span <= 2 * BURST_S:
        return []
    values = _judged_columns(trajectory, criteria)
    step = span / max(1, trajectory.length - 1)
    width = max(1, round(BURST_S / step))
    sums = np.cumsum(np.vstack([np.zeros(values.shape[1]), values]), axis=0)
    means = (sums[width:] - sums[:-width]) / width  # of the rows from i to i + width
    after, before = means[width:], means[:-width]
    change = np.abs(after - before).sum(axis=1)  # at row i + width, which is in their middle
    event = int(change.argmax()) + width // 2
    typical = np.abs(means - np.median(means, axis=0)).sum(axis=1)
    # Side by side they would show one stretch twice as long: half a burst lies between them.
    apart = np.abs(np.arange(len(means)) - event) >= width + max(1, width // 2)
    usual = int(np.where(apart, typical, np.inf).argmin())
    chosen = [Stretch(*_find_burst(times, event), "where it changes most")]
    if apart.any():
        chosen.append(Stretch(*_find_burst(times, usual), "as it is most of the time"))
    return sorted(chosen, key=lambda stretch: stretch.start_s)


def _find_burst(times: NDArray[np.float64], row: int) -> tuple[float, float]:
    start = float(times[min(row, len(times) - 1)])
    start = max(float(times[0]), min(start, float(times[-1]) - BURST_S))
    return start, start + BURST_S


def _judged_columns(
    trajectory: RecordedEpisode, criteria: Sequence[Criterion]
) -> NDArray[np.float64]:
    """Return one column for each judged quantity, scaled to the same spread."""
    words = set(re.findall(r"\w+", " ".join(f"{c.measure} {c.description}" for c in criteria)))
    named = [n for n in trajectory.columns if n in words and n not in ("step", "timestamp")]
    columns = [_flat(trajectory[name]) for name in named]
    if not columns and "xpos" in trajectory.columns:
        columns = [trajectory["xpos"][:, 1:, 2], _tilts(trajectory)]
        columns += [_flat(c) for n, c in trajectory.columns.items() if n.endswith("_velocity")]
    if not columns:
        columns = [_flat(trajectory["obs"])]
    values = np.nan_to_num(np.concatenate(columns, axis=1).astype(np.float64))
    scaled: NDArray[np.float64] = values / np.maximum(values.std(axis=0), 1e-6)
    return scaled


def _flat(column: NDArray[Any]) -> NDArray[Any]:
    """A column as numbers side by side, one row for each step."""
    return column.reshape(len(column), -1)


def _tilts(trajectory: RecordedEpisode) -> NDArray[np.float64]:
    """Return how far each body's own z axis points up."""
    turn = trajectory["xquat"][:, 1:].astype(np.float64)
    up: NDArray[np.float64] = 1 - 2 * (turn[..., 1] ** 2 + turn[..., 2] ** 2)
    return up


def _still(path: Path) -> Media:
    from PIL import Image

    with Image.open(path) as picture:
        return Media(jpeg(picture.convert("RGB"), picture.width), "image/jpeg")


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
    """Return what the model sees in an episode, asked about `look_at`, and what it was shown.

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
    """Resolve two opinions on an episode by asking a model that is given both.

    What code scored of other criteria than the intent's stays as it is. Raises InferenceError.
    """
    assert episode.code is not None
    assert episode.vlm is not None
    spec = get_env_spec(intent.env_id)
    asked_of = {criterion.id for criterion in intent.criteria}
    kept = tuple(each for each in episode.code.criteria if each.id not in asked_of)
    heard = tuple(each for each in episode.code.criteria if each.id in asked_of)
    request = SynthesisRequest(
        prompt=intent.prompt,
        env_id=intent.env_id,
        criteria=intent.criteria,
        code=episode.code.model_copy(update={"criteria": heard}),
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
    diagnosis, tags = add_other_tags(answer.diagnosis, answer.failure_tags)
    return Verdict(
        criteria=(*seen_scores(answer.criteria, intent.criteria, heard), *kept),
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
            return _show_again(vlm, intent, episode.file, question, start_s, end_s)
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


def _show_again(
    vlm: LLMClient, intent: Intent, trajectory: Path, look_at: str, start_s: float, end_s: float
) -> str:
    """A part of the episode, filmed anew and shown with a question."""
    whole = RecordedEpisode.load(trajectory)
    part = cut(whole, min(start_s, end_s), max(start_s, end_s))
    with tempfile.TemporaryDirectory(prefix="p2p-look-") as name:
        source = Path(name) / "trajectory_part.npz"
        part.save(source)
        [filmed] = film(intent.env_id, [source], intent.criteria, video=takes_video(vlm.model))
        if filmed.problem:
            return f"It cannot be shown: {filmed.problem}"
        verdict, _ = look(vlm, intent, filmed, part, look_at=look_at)
    return verdict.model_dump_json()


def film(
    env_id: str,
    trajectories: Sequence[Path],
    criteria: Sequence[Criterion],
    *,
    video: bool = False,
    initial_frame: bool = False,
    motion_trail: bool = False,
) -> list[Film]:
    """Draw each trajectory, as files beside it: `trajectory_x.npz` becomes `frames_x.mp4`.

    The criteria say which frames are worth a look. The `video` of the whole episode takes five
    times as long: it is for models that take one.
    """
    from p2p.training.video.rendering import RenderJob, render_async

    def job(source: Path, name: str, **options: Any) -> RenderJob:
        output = source.with_name(name.format(source.stem.removeprefix("trajectory_")))
        return RenderJob(env_id=env_id, trajectory=source, output=output, **options)

    by_episode: list[tuple[tuple[FrameGroup, ...], list[RenderJob]]] = []
    for source in trajectories:
        groups = frame_groups(RecordedEpisode.load(source), criteria)
        rows = tuple(row for group in groups for row in group.rows)
        jobs = [job(source, "frames_{}.mp4", rows=rows)]
        if video:
            jobs.append(job(source, "video_{}.mp4", max_frames=VIDEO_FRAMES))
        if initial_frame:
            jobs.append(job(source, "initial_{}.png", view="initial_frame", width=640, height=480))
        if motion_trail:
            jobs.append(job(source, "trail_{}.png", view="motion_trail", width=1152, height=384))
        by_episode.append((groups, jobs))
    process = render_async([job for _, jobs in by_episode for job in jobs])
    try:
        outcomes = {outcome.output: outcome for outcome in process.wait()}
    finally:
        process.cancel()  # nothing to cancel, unless the wait was interrupted
    films: list[Film] = []
    for groups, jobs in by_episode:
        made = [outcomes[job.output.absolute()] for job in jobs]
        needed, others = made[: 1 + video], jobs[1 + video :]
        stills = {j.view: o.output for j, o in zip(others, made[1 + video :], strict=True) if o.ok}
        films.append(
            Film(
                frames=made[0].output,
                groups=groups,
                video=made[1].output if video else None,
                initial_frame=stills.get("initial_frame"),
                motion_trail=stills.get("motion_trail"),
                problem=next((o.error or "no video" for o in needed if not o.ok), ""),
            )
        )
    return films


def cut(trajectory: RecordedEpisode, start_s: float, end_s: float) -> RecordedEpisode:
    """The steps between two times, or the step nearest to them if there is none between."""
    times = trajectory["timestamp"]
    rows = np.flatnonzero((times >= start_s) & (times <= end_s))
    if not len(rows):
        rows = np.array([int(np.abs(times - start_s).argmin())])
    return trajectory.part(rows)
