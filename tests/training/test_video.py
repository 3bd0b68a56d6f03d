from fractions import Fraction
from itertools import pairwise

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.training.video.encode import draw_texts, sampled_steps, write_video


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


@given(st.integers(1, 3000), st.floats(0.001, 0.5), st.sampled_from([10.0, 24.0, 30.0, 60.0]))
def test_videos_run_in_real_time_within_the_frame_rate(length, dt, max_fps):
    rows, fps = sampled_steps(length, dt, max_fps)
    assert rows[0] == 0
    assert rows[-1] == length - 1
    assert rows == sorted(set(rows))
    assert fps <= max_fps * 1.001
    if len(rows) > 2:
        assert float(fps) * (rows[1] - rows[0]) * dt == pytest.approx(1, rel=1e-3)
        assert {b - a for a, b in pairwise(rows[:-1])} == {rows[1] - rows[0]}


@pytest.mark.parametrize(
    ("dt", "fps"), [(0.05, 20), (0.008, 25), (0.02, 25), (0.04, 25), (1 / 30, 30), (0.015, 22.22)]
)
def test_the_rate_is_the_highest_that_shows_equal_steps(dt, fps):
    assert float(sampled_steps(100, dt)[1]) == pytest.approx(fps, rel=1e-3)


def test_text_is_light_on_dark_and_outside_the_band_nothing_changes():
    frame = np.full((480, 480, 3), 200, np.uint8)
    inside, outside = frame[-28:], frame[:-28]
    draw_texts(inside, ("12.35 s", "step 247 / 1000", "return 12.5 / 40.0"))
    assert (outside == 200).all()
    assert inside.max() > 240
    assert np.median(inside) <= 60
    written = np.flatnonzero((inside > 150).any(axis=(0, 2)))
    assert written.min() >= 8
    assert written.max() < 475


def test_digits_keep_their_places():
    frames = []
    for text in ("return 1111 / 5", "return 8888 / 5"):
        frame = np.zeros((32, 480, 3), np.uint8)
        draw_texts(frame[:28], (text,))
        frames.append(frame)
    np.testing.assert_array_equal(frames[0][:, :50], frames[1][:, :50])
    np.testing.assert_array_equal(frames[0][:, 104:], frames[1][:, 104:])
    assert (frames[0] != frames[1]).any()


def test_text_that_is_too_long_is_cut_at_the_edge():
    frame = np.zeros((64, 64, 3), np.uint8)
    draw_texts(frame[:28], ("a title that is much too long for this", "b" * 50, "c" * 50))
    assert frame.shape == (64, 64, 3)


def test_a_long_episode_is_shown_whole_at_fewer_frames() -> None:
    rows, fps = sampled_steps(1000, 0.05, max_frames=500)
    assert rows[:3] == [0, 2, 4]
    assert rows[-1] == 999
    assert len(rows) <= 501
    assert fps == 10
