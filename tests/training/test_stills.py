"""Single pictures of an episode: poses in one picture, and the first frame with names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from p2p.config import TrainConfig
from p2p.training.evaluation import record_episodes
from p2p.training.trajectory import RecordedEpisode
from p2p.training.video import stills
from p2p.training.video.rendering import RenderJob, render_async
from p2p.training.video.scene import Camera

SIDE = Camera(azimuth=90, elevation=-15, distance=4.0, lookat=(0, 0, 0.5), tracked_body=1)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A cheetah that is carried 40 m along +x, as both pictures; and a plain picture of nothing."""
    folder = tmp_path_factory.mktemp("stills")
    config = TrainConfig(env_id="HalfCheetah-v5", max_episode_steps=60)
    arrays = record_episodes(config, "zero", episodes=1, seed=1)[0].arrays()
    arrays["qpos"] = arrays["qpos"].copy()
    arrays["qpos"][:, 0] += np.linspace(0, 40, len(arrays["qpos"]))
    RecordedEpisode.from_arrays(arrays).save(folder / "far.npz")
    sizes = {"motion_trail": (768, 256), "initial_frame": (480, 360)}
    jobs = [
        RenderJob(
            env_id="HalfCheetah-v5",
            trajectory=folder / "far.npz",
            output=folder / f"{view}.png",
            view=view,  # type: ignore[arg-type]
            width=width,
            height=height,
        )
        for view, (width, height) in sizes.items()
    ]
    assert [outcome.error for outcome in render_async(jobs, 120).wait()] == ["", ""]
    return {job.view: job.output for job in jobs}


def test_a_trail_shows_every_pose_in_its_place_from_blue_to_red(drawn: dict[str, Path]) -> None:
    pixels = np.asarray(Image.open(drawn["motion_trail"]).convert("RGB")).astype(int)
    assert pixels.shape == (256, 768, 3)
    red, blue = pixels[90:, :, 0], pixels[90:, :, 2]  # below the sky
    where = [np.flatnonzero(mask.any(axis=0)) for mask in (blue - red > 60, red - blue > 60)]
    assert len(where[0])
    assert len(where[1])
    first, last = float(where[0].mean()), int(where[1].max())
    assert first < 200  # of 768 pixels
    assert last > 568  # 40 m do not fit: travel is shortened


def test_the_first_frame_names_bodies_and_axes(drawn: dict[str, Path]) -> None:
    pixels = np.asarray(Image.open(drawn["initial_frame"]).convert("RGB")).astype(int)
    yellow = (pixels[..., 0] > 240) & (pixels[..., 1] > 200) & (pixels[..., 2] < 40)
    assert yellow.sum() > 100  # the axes
    dots = (np.abs(pixels - (255, 60, 60)) < 15).all(axis=2)
    assert dots.sum() > 7 * 20  # a dot on each of the cheetah's bodies


def test_what_goes_right_in_the_world_goes_right_in_the_picture() -> None:
    points = np.array([(0, 0, 0.5), (1, 0, 0.5), (0, 0, 1.5), (0, 1, 0.5)])
    middle, ahead, above, left = stills.project_points(points, SIDE, 45, 480, 480)
    assert middle == pytest.approx((240, 240))
    assert ahead[0] > 240
    assert above[1] < 240
    assert left[0] == pytest.approx(240)


@pytest.mark.parametrize("metres", [0.0, 3.0, 300.0])
def test_all_poses_fit_however_far_they_go(metres: float) -> None:
    path = np.tile((0.0, 0.0, 0.5), (12, 1))
    path[:, 0] = np.linspace(0, metres, 12)
    camera, drawn = stills._fit_camera(SIDE, path, 45, 3.0)
    places = stills.project_points(drawn, camera, 45, 1152, 384)
    assert ((places > 20) & (places < (1132, 364))).all()
    assert (drawn == path).all() == (metres < 100)
    assert camera.distance <= stills.FARTHEST * SIDE.distance
