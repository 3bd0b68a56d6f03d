"""What a judge that looks is shown: frames where the motion is, pictures in their order, videos."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from model_servers import Answer, Failure, ModelServer, ProviderName, Reply
from model_wire import Received
from PIL import Image
from scripted_client import criterion, hopper_intent

from p2p.agents import judge_agent, visual_judge
from p2p.agents.judge_agent import EpisodeJudge
from p2p.agents.judge_code import episode_summary
from p2p.agents.verdicts import JudgedEpisode
from p2p.agents.visual_judge import BURST_FPS, BURST_S, Film, film, look, stretches
from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import Criterion, Intent
from p2p.event_log import EventLog, read_events, use_log
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import RetryPolicy
from p2p.inference.vlm import takes_video
from p2p.settings import get_settings
from p2p.training.evaluation import record_episodes
from p2p.training.trajectory import RecordedEpisode

CONFIG = TrainConfig(env_id="Hopper-v5", max_episode_steps=60)


@pytest.fixture(scope="module")
def episode(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Film]:
    file = tmp_path_factory.mktemp("film") / "trajectory_seed_1.npz"
    record_episodes(CONFIG, "zero", episodes=1, seed=1)[0].save(file)
    [filmed] = film("Hopper-v5", [file], (), video=True, initial_frame=True, motion_trail=True)
    assert not filmed.problem
    return file, filmed


def sees(received: Received) -> Reply:
    _, request = received.block
    seen = [{"id": c["id"], "evidence": "at 0.1 s", "score": 0.9} for c in request["criteria"]]
    return Answer({"analysis": "it stands", "criteria": seen, "diagnosis": "d", "failure_tags": []})


def refuses_videos(received: Received) -> Reply:
    if any(kind == "video/mp4" for kind, _ in received.media):
        return Failure(400, "At most 0 video(s) may be provided in one prompt.")
    return sees(received)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    servers: list[ModelServer] = []

    def serve(provider: ProviderName, script: Any) -> tuple[ModelServer, LLMClient]:
        server = ModelServer(script)
        servers.append(server.__enter__())
        for name, value in server.environment(provider).items():
            monkeypatch.setenv(name, value)
        get_settings.cache_clear()
        retry = RetryPolicy(attempts=1, timeout_s=20.0)
        return server, LLMClient(server.model(provider), folder=tmp_path / "llm", retry=retry)

    yield serve
    for server in servers:
        server.__exit__(None, None, None)
    get_settings.cache_clear()


def walk(seconds: float, falls_at: float, faster_at: float = 1e9) -> RecordedEpisode:
    """A gait of 1.2 s; at a time its height drops for good, at another its speed rises."""
    times = np.arange(1, round(seconds / 0.05) + 1) * 0.05
    height = 1.2 + 0.05 * np.sin(2 * np.pi * times / 1.2) - 0.8 * (times > falls_at)
    rows = len(times)
    xpos = np.zeros((rows, 2, 3))
    xpos[:, 1, 2] = height
    return RecordedEpisode.from_arrays(
        {
            "step": np.arange(rows), "timestamp": times, "reward": np.zeros(rows),
            "cumulative_reward": np.zeros(rows), "terminated": np.zeros(rows, bool),
            "truncated": np.zeros(rows, bool), "obs": np.zeros((rows, 1)),
            "action": np.zeros((rows, 1)), "next_obs": np.zeros((rows, 1)), "xpos": xpos,
            "xquat": np.tile((1.0, 0.0, 0.0, 0.0), (rows, 2, 1)),
            "x_velocity": np.where(times > faster_at, 3.0, 1.0),
            "_reward_term_names": np.array([], dtype=np.str_),
        }
    )  # fmt: skip


@pytest.mark.parametrize("measured", ["what no column holds", "body_up[1, z]", "the speed of com"])
def test_bursts_are_found_whatever_the_criteria_name(measured):
    config = TrainConfig(env_id="HalfCheetah-v5", max_episode_steps=150)
    [whole] = record_episodes(config, "random", episodes=1, seed=1)
    assert len(stretches(whole, (criterion("low", measure=f"mean of {measured}"),))) == 2


def test_bursts_show_the_fall_and_a_whole_gait_of_a_long_episode() -> None:
    usual, event = stretches(walk(50, falls_at=31.0), ())
    assert event.start_s < 31.0 < event.end_s
    assert event.reason == "where it changes most"
    assert usual.end_s <= event.start_s
    assert usual.end_s - usual.start_s == pytest.approx(BURST_S)
    assert BURST_S > 1.2
    assert 8 <= BURST_FPS <= 10


@pytest.mark.parametrize("seconds", [4.6, 5.5, 6.5, 10.0])
def test_bursts_lie_apart_in_time(seconds: float) -> None:
    for falls_at in np.linspace(0.5, seconds - 0.2, 25):
        first, *rest = stretches(walk(seconds, falls_at=float(falls_at)), ())
        for second in rest:
            assert second.start_s - first.end_s >= BURST_S / 3
        assert rest or seconds < 6


def test_what_the_criteria_name_decides_where_to_look() -> None:
    named = criterion("speed", measure="mean of x_velocity over the episode")
    found = stretches(walk(50, falls_at=31.0, faster_at=12.0), (named,))
    [event] = [each for each in found if each.reason == "where it changes most"]
    assert event.start_s < 12.0 < event.end_s


def test_a_short_episode_needs_no_bursts() -> None:
    assert stretches(walk(2.5, falls_at=1.0), ()) == []


def test_a_long_episode_is_shown_as_a_strip_and_bursts() -> None:
    trajectory = walk(50, falls_at=31.0)
    strip, usual, event = visual_judge.frame_groups(trajectory, ())
    assert [len(group.rows) for group in (strip, usual, event)] == [12, 12, 12]
    times = trajectory["timestamp"]
    assert times[strip.rows[0]] < 5
    assert times[strip.rows[-1]] > 45
    assert times[event.rows[0]] < 31.0 < times[event.rows[-1]]
    assert np.diff(times[list(event.rows)]).mean() == pytest.approx(1 / BURST_FPS, abs=0.01)
    [short] = visual_judge.frame_groups(walk(4, falls_at=2.0), ())
    assert len(short.rows) == 32


def test_the_first_frame_comes_first_then_the_trail_then_times_and_frames(
    episode: tuple[Path, Film], served: Any
) -> None:
    server, client = served("anthropic", sees)
    file, filmed = episode
    _, shown = look(client, hopper_intent(), filmed, RecordedEpisode.load(file))
    [request] = server.requests
    texts, media = request.user_texts, request.media
    asked, *labels = texts
    assert '<request role="visual_judge">' in asked
    assert labels[0] == visual_judge.INITIAL_FRAME
    assert labels[1] == visual_judge.MOTION_TRAIL
    assert labels[2] == "The whole episode:"
    assert all(label.endswith(" s") for label in labels[3:])
    sizes = [Image.open(io.BytesIO(data)).size for _, data in media]
    assert sizes[:2] == [(640, 480), (1152, 384)]
    assert set(sizes[2:]) == {(640, 480)}
    assert shown.startswith("initial; trail; the whole episode (")


def test_no_picture_is_drawn_that_a_model_is_not_shown(
    episode: tuple[Path, Film], served: Any, tmp_path: Path
) -> None:
    server, client = served("anthropic", sees)
    file = Path(shutil.copy(episode[0], tmp_path))
    drawn = set(tmp_path.iterdir())
    [filmed] = film("Hopper-v5", [file], (), video=takes_video(client.model))
    assert set(tmp_path.iterdir()) - drawn == {filmed.frames}
    look(client, hopper_intent(), filmed, RecordedEpisode.load(file))
    with av.open(filmed.frames) as video:
        assert sum(1 for _ in video.decode(video=0)) == len(server.requests[0].media)


def test_vllm_judges_by_the_whole_video(episode: tuple[Path, Film], served: Any) -> None:
    server, client = served("vllm", sees)
    file, filmed = episode
    verdict, shown = look(client, hopper_intent(), filmed, RecordedEpisode.load(file))
    assert [kind for kind, _ in server.requests[0].media] == ["image/jpeg"] * 2 + ["video/mp4"]
    assert (verdict.analysis, shown) == (
        "it stands", "initial; trail; the whole video",
    )  # fmt: skip


def test_a_server_that_refuses_videos_gets_frames_and_that_is_said(
    episode: tuple[Path, Film], served: Any, tmp_path: Path
) -> None:
    server, client = served("vllm", refuses_videos)
    file, filmed = episode
    with use_log(EventLog(tmp_path / "events.jsonl")):
        _, shown = look(client, hopper_intent(), filmed, RecordedEpisode.load(file))
    assert {kind for kind, _ in server.requests[1].media} == {"image/jpeg"}
    assert "the video was refused" in shown
    assert "At most 0 video(s)" in shown
    events = [event.event for event in read_events(tmp_path / "events.jsonl")]
    assert "vlm.video_refused" in events


JUDGE = """
def judge_fn(trajectory, summary):
    return {"criteria": {"stays": {"score": 1.0, "value": 120, "evidence": "steps"}}}
"""


@pytest.fixture
def quick_film(monkeypatch: pytest.MonkeyPatch, episode: tuple[Path, Film]) -> None:
    """Drawing takes seconds, and the episode is drawn already."""
    plain = replace(episode[1], initial_frame=None, motion_trail=None)
    monkeypatch.setattr(judge_agent, "film", lambda *_, **__: [plain])


def judged(served: Any, episode: tuple[Path, Film], score: float) -> Any:
    """An episode judged by code and eye, with a criterion that only the eye can judge."""

    def eyes(received: Received) -> Reply:
        said = {"stays": 0.9, "seen_1": score}
        seen = [{"id": n, "evidence": f"{n} at 0.2 s", "score": s} for n, s in said.items()]
        return Answer(
            {"analysis": "a", "criteria": seen, "diagnosis": "it stands", "failure_tags": []}
        )

    own = Criterion.from_remark(1, "the foot stays flat on the ground")
    intent = hopper_intent(criterion("stays", threshold=100), own)
    server, client = served("openai", eyes)
    file, _ = episode
    summary = episode_summary(CONFIG, RecordedEpisode.load(file), seed=1)
    loop = LoopConfig(train=CONFIG, vlm_model="openai:eyes", refined_initial_frame=False)
    judge = EpisodeJudge(None, client, intent, JUDGE, "both", loop)
    return judge.judge([JudgedEpisode("seed_1", 1, file, summary)], step=1), server


@pytest.mark.usefixtures("quick_film")
def test_a_criterion_of_the_users_own_is_judged_by_eye_alone_and_counts(
    episode: tuple[Path, Film], served: Any
) -> None:
    result, server = judged(served, episode, 0.9)
    [stays, seen] = result.criteria
    assert (seen.id, seen.score, seen.value, seen.evidence) == (
        "seen_1", 0.9, 0.9, "seen_1 at 0.2 s",
    )  # fmt: skip
    assert stays.value == 120
    assert result.passed
    code, eye = result.rollouts[0].opinions
    assert [each.id for each in code.criteria] == ["stays"]
    assert eye.shown.startswith("the whole episode (")
    assert '"visual":true' in "".join(server.requests[0].user_texts)


@pytest.mark.usefixtures("quick_film")
def test_what_must_be_seen_and_is_not_seen_is_no_pass(
    episode: tuple[Path, Film], served: Any
) -> None:
    result, _ = judged(served, episode, 0.3)
    assert result.criteria[0].score == 1.0
    assert not result.passed
    assert "the foot stays flat" in result.diagnosis


def test_an_intent_takes_up_what_must_be_seen_once() -> None:
    from p2p.agents.intent_elicitor import parse_criteria, render_criteria, with_visual_criteria

    text = "the front foot never touches the ground, not even for a moment, while it runs and jumps"
    once = with_visual_criteria(hopper_intent(), [text, "no wobble"])
    assert [c.id for c in once.criteria if c.visual] == ["seen_1", "seen_2"]
    assert len(once.criteria[2].title) <= 80
    assert [c.id for c in once.measured] == ["stays", "calm"]
    assert with_visual_criteria(once, [text, "no wobble"]) == once
    assert Intent.model_validate_json(once.model_dump_json()) == once
    assert parse_criteria(render_criteria(once.criteria)) == once.criteria


def test_nobody_looks_without_a_model_that_sees() -> None:
    with pytest.raises(ValueError, match="visual_criteria: they need a vision model"):
        LoopConfig(visual_criteria=("the head stays up",))
