"""Draw the pictures of the environments that the dashboard shows: needs EGL, and is rarely run."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("MUJOCO_GL", "egl")

import gymnasium
import numpy as np
from PIL import Image

from p2p.training.env_spec import list_env_ids

FOLDER = Path(__file__).parents[1] / "frontend" / "src" / "pages" / "start" / "pictures"


def main() -> None:
    """Draw each environment a few steps after its start."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for env_id in list_env_ids():
        env = gymnasium.make(env_id, render_mode="rgb_array", width=480, height=360)
        env.reset(seed=1)
        for _ in range(3):
            env.step(np.zeros(env.action_space.shape or ()))
        picture = Image.fromarray(np.asarray(env.render()))
        picture.resize((240, 180)).save(FOLDER / f"{env_id}.webp", quality=78)
        env.close()


if __name__ == "__main__":
    main()
