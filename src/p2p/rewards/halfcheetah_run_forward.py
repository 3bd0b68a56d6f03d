"""Run forward fast, with the back level."""

import numpy as np

ENV_ID = "HalfCheetah-v5"


def reward_fn(obs, action, next_obs, info):
    r"""Run forward fast, with the back level.

    LaTeX: r = v_x - 0.1 \|a\|^2 - 0.2 \theta^2
    Terms:
        speed: forward speed
        ctrl: cost of large actions
        level: cost of pitching the torso
    """
    pitch = next_obs[..., 1]
    speed = info["x_velocity"]
    ctrl = -0.1 * np.sum(np.square(action), axis=-1)
    level = -0.2 * np.square(pitch)
    return speed + ctrl + level, {"speed": speed, "ctrl": ctrl, "level": level}
