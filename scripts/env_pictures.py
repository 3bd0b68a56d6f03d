"""Draw the pictures of the environments that the dashboard shows, as the videos show them.

python scripts/env_pictures.py     # into frontend/src/pages/start/pictures; then make frontend
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("MUJOCO_GL", "egl")

import gymnasium
import mujoco
import numpy as np
from PIL import Image

from p2p.training.env_spec import list_env_ids
from p2p.training.envs.registry import quiet_loading
from p2p.training.video.scene import Scene, choose_camera, open_model, place

FOLDER = Path(__file__).parents[1] / "frontend" / "src" / "pages" / "start" / "pictures"
SIZE = (320, 240)
DRAWN_LARGER = 3
"""Drawn at several times the size: its edges are smooth then."""
STEPS = {"Walker2d-v5": 12, "Hopper-v5": 14, "Swimmer-v5": 40, "Ant-v5": 10, "Humanoid-v5": 6}
"""Of random actions: legs that stand one behind the other look like a stick."""
CLOSER = 0.8
"""Than the camera of a video, which leaves room to jump."""
QUALITY = 72


def main() -> None:
    """Draw each environment in a posture from which it can be told."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for env_id in list_env_ids():
        draw(env_id).save(FOLDER / f"{env_id}.webp", quality=QUALITY, method=6)


def draw(env_id: str) -> Image.Image:
    """The agent, large, over the ground of the videos."""
    model, settings = open_model(env_id)
    data = mujoco.MjData(model)
    place(model, data)
    camera = choose_camera(model, data, settings)
    if camera.tracked_body is not None:
        camera = replace(camera, distance=CLOSER * camera.distance)
    data.qpos[:] = posture(env_id)
    place(model, data)
    width, height = (DRAWN_LARGER * side for side in SIZE)
    with Scene(model, width, height) as scene:
        return Image.fromarray(scene.picture(data, camera.at(data))).resize(
            SIZE, Image.Resampling.LANCZOS
        )


def posture(env_id: str) -> np.ndarray:
    """Its positions soon after the start of an episode."""
    with quiet_loading():
        env = gymnasium.make(env_id)
    env.reset(seed=1)
    env.action_space.seed(1)
    for _ in range(STEPS.get(env_id, 0)):
        env.step(env.action_space.sample())
    positions = np.array(env.unwrapped.data.qpos)
    env.close()
    return positions


if __name__ == "__main__":
    main()
