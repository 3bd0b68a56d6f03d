"""What a model is shown of a video: itself where it can take it, real frames otherwise."""

from __future__ import annotations

import io
from fractions import Fraction

import av
import numpy as np
import pytest
from greeting import HELLO, question
from model_servers import Answer
from PIL import Image

from p2p.inference import vlm
from p2p.inference.question import RequestRejected

LOOK = {"max_frames": 24, "fps": 10}


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """Four seconds at 25 frames a second; the picture gets brighter from black to white."""
    path = tmp_path_factory.mktemp("videos") / "clip.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(25))
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        for i in range(100):
            picture = np.full((240, 320, 3), round(255 * i / 99), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        container.mux(stream.encode())
    return path


def brightness(jpeg: bytes) -> float:
    return float(np.asarray(Image.open(io.BytesIO(jpeg)).convert("L")).mean())


def test_frames_come_from_the_middle_of_equal_intervals(video):
    frames = vlm.frames_of(video, max_frames=4, fps=10)
    assert [seconds for seconds, _ in frames] == pytest.approx([0.48, 1.48, 2.48, 3.48], abs=0.03)
    expected = [255 * (25 * i + 12) / 99 for i in range(4)]
    assert [brightness(jpeg) for _, jpeg in frames] == pytest.approx(expected, abs=6)


def test_there_are_no_more_frames_than_asked_for_and_than_there_are(video):
    assert len(vlm.frames_of(video, max_frames=50, fps=5)) == 20
    assert len(vlm.frames_of(video, max_frames=7, fps=25)) == 7
    assert len(vlm.frames_of(video, max_frames=1000, fps=1000)) == 100
    assert len(vlm.frames_of(video, max_frames=3, fps=0.01)) == 1
    assert vlm.seconds_of(video) == pytest.approx(4.0)


@pytest.mark.parametrize("provider", ["anthropic", "openai", "vllm", "ollama"])
def test_models_that_take_pictures_get_frames(serve, client_for, provider, video):
    server = serve(provider, [Answer(HELLO)])
    media = vlm.media_for(server.model(provider), video, max_frames=3, fps=10)
    client_for(provider).ask(question(prompt=["What happens?", *media]))
    seen = server.requests[0].media
    assert [kind for kind, _ in seen] == ["image/jpeg"] * 3
    light = [brightness(data) for _, data in seen]
    assert light == sorted(light)
    assert light[2] - light[0] > 100


def test_gemini_gets_the_video_and_is_told_how_closely_to_look(serve, client_for, video):
    server = serve("google", [Answer(HELLO)])
    media = vlm.media_for(server.model("google"), video, max_frames=24, fps=8)
    client_for("google").ask(question(prompt=["What happens?", *media]))
    [(kind, data)] = server.requests[0].media
    assert (kind, data) == ("video/mp4", video.read_bytes())
    assert '"fps": 8' in server.requests[0].everything


def test_a_long_video_is_looked_at_less_closely(video, monkeypatch):
    monkeypatch.setattr(vlm, "MOST_VIDEO_FRAMES", 20)
    [medium] = vlm.media_for("google:gemini-3.8-flash", video, **LOOK)
    assert medium.fps == pytest.approx(5.0)


def test_a_video_too_large_for_one_request_goes_as_frames(video, monkeypatch):
    monkeypatch.setattr(vlm, "MOST_INLINE_BYTES", 10)
    media = vlm.media_for("google:gemini-3.8-flash", video, max_frames=5, fps=10)
    assert [medium.media_type for medium in media] == ["image/jpeg"] * 5


def test_who_cannot_see_and_what_cannot_be_seen_is_said(tmp_path, video):
    with pytest.raises(RequestRejected, match="cannot see"):
        vlm.media_for("builtin", video, **LOOK)
    (tmp_path / "broken.mp4").write_bytes(b"not a video")
    for name in ("broken.mp4", "absent.mp4"):
        with pytest.raises(RequestRejected, match=name):
            vlm.media_for("vllm:any", tmp_path / name, **LOOK)
    with pytest.raises(RequestRejected, match=r"absent\.mp4"):
        vlm.media_for("google:any", tmp_path / "absent.mp4", **LOOK)
