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


def test_frames_are_all_of_a_video_in_their_order(video):
    frames = [brightness(jpeg) for jpeg in vlm.frames_of(video)]
    assert frames == pytest.approx([255 * i / 99 for i in range(100)], abs=6)
    assert vlm.seconds_of(video) == pytest.approx(4.0)


def test_gemini_gets_the_video_and_is_told_how_closely_to_look(serve, client_for, video):
    server = serve("google", [Answer(HELLO)])
    whole = vlm.whole_video(server.model("google"), video, 8)
    client_for("google").ask(question(prompt=["What happens?", whole]))
    [(kind, data)] = server.requests[0].media
    assert (kind, data) == ("video/mp4", video.read_bytes())
    assert '"fps": 8' in server.requests[0].everything


def test_vllm_gets_the_video_as_a_part_of_its_own(serve, client_for, video):
    server = serve("vllm", [Answer(HELLO)])
    whole = vlm.whole_video(server.model("vllm"), video, 8)
    client_for("vllm").ask(question(prompt=["What happens?", whole]))
    assert server.requests[0].media == [("video/mp4", video.read_bytes())]
    [message] = [m for m in server.requests[0].body["messages"] if m["role"] == "user"]
    kinds = [part["type"] for part in message["content"]]
    assert kinds == ["text", "video_url"]


def test_a_long_video_is_looked_at_less_closely(video):
    assert vlm.whole_video("google:gemini-3.8-flash", video, 100).fps == pytest.approx(50.0)
    assert vlm.whole_video("vllm:any", video, 100).fps == pytest.approx(8.0)


def test_a_video_too_large_for_one_request_goes_as_frames(video, monkeypatch):
    monkeypatch.setattr(vlm, "MOST_INLINE_BYTES", 10)
    assert vlm.whole_video("google:gemini-3.8-flash", video, 10) is None
    assert vlm.whole_video("anthropic:any", video, 10) is None


def test_who_cannot_see_and_what_cannot_be_seen_is_said(tmp_path, video):
    with pytest.raises(RequestRejected, match="has no vision"):
        vlm.whole_video("builtin", video, 8)
    (tmp_path / "broken.mp4").write_bytes(b"not a video")
    for name in ("broken.mp4", "absent.mp4"):
        with pytest.raises(RequestRejected, match=name):
            vlm.whole_video("vllm:any", tmp_path / name, 8)
        with pytest.raises(RequestRejected, match=name):
            vlm.frames_of(tmp_path / name)
