from fractions import Fraction

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.training.video.playback import FPS, frame_rows, write_video


def gradient(i, width=96, height=64):
    frame = np.zeros((height, width, 3), np.uint8)
    frame[:, :, 0] = np.linspace(0, 255, width).astype(np.uint8)
    frame[:, :, 1] = 10 * i
    return frame


def test_the_file_is_what_browsers_play(tmp_path):
    path = tmp_path / "v.mp4"
    assert write_video(path, (gradient(i) for i in range(20)), Fraction(25)) == 20
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(stream)]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert stream.average_rate == 25
        assert float(file.duration) / av.time_base == pytest.approx(20 / 25, abs=0.01)
    assert len(frames) == 20
    for i, frame in enumerate(frames):
        assert np.abs(frame.astype(int) - gradient(i)).mean() < 12
    content = path.read_bytes()
    assert content.index(b"moov") < content.index(b"mdat"), "playing must not wait for the end"
    assert [p.name for p in tmp_path.iterdir()] == ["v.mp4"]


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([], "at least one frame"),
        ([gradient(0, width=95)], "even width"),
        ([gradient(0), gradient(1, width=64)], "frame 1"),
    ],
)
def test_what_cannot_be_encoded_leaves_no_file(tmp_path, frames, message):
    with pytest.raises(ValueError, match=message):
        write_video(tmp_path / "v.mp4", frames, Fraction(25))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_remake_leaves_the_old_video(tmp_path):
    path = tmp_path / "v.mp4"
    write_video(path, [gradient(0)], Fraction(25))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="frame 1"):
        write_video(path, [gradient(0), gradient(1, width=64)], Fraction(25))
    assert path.read_bytes() == before


@given(st.integers(1, 1000), st.floats(0.001, 0.1))
def test_videos_run_in_real_time_at_one_rate(length, dt):
    rows, fps = frame_rows(length, dt)
    assert rows[0] == 0
    assert rows[-1] == length - 1
    assert fps == FPS
    np.testing.assert_allclose(np.diff(rows[:-1]) * dt, 1 / FPS)
    assert 0 <= rows[-1] - (rows[-2] if len(rows) > 1 else 0) <= 1 / (FPS * dt) * 1.001


def test_a_long_episode_is_shown_whole_at_as_few_frames_as_wished() -> None:
    rows, fps = frame_rows(1000, 0.05, max_frames=500)
    assert rows[:3] == [0, 2, 4]
    assert rows[-1] == 999
    assert len(rows) <= 501
    assert fps == 10
    assert frame_rows(100, 0.05, max_frames=500)[1] == FPS, "never more than there are"


def test_a_time_step_must_be_positive() -> None:
    with pytest.raises(ValueError, match="dt must be positive"):
        frame_rows(10, 0.0)


def test_of_a_long_episode_the_beginning_and_the_end_are_shown_in_real_time() -> None:
    rows, fps = frame_rows(1000, 0.05, max_seconds=20.0)
    assert (len(rows), fps) == (20 * FPS, FPS)
    assert rows[:3] == pytest.approx([0, 0.8, 1.6])
    assert rows[249] == pytest.approx(249 * 0.8)
    assert rows[-1] == 999
    assert rows[250] > 790
    assert len(frame_rows(1000, 0.008, max_seconds=20.0)[0]) == 201, "a short one whole"
