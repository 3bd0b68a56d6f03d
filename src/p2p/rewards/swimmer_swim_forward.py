"""Swim along x, keeping the heading."""

import numpy as np

ENV_ID = "Swimmer-v5"


def reward_fn(obs, action, next_obs, info):
    r"""Swim along x, keeping the heading.

    LaTeX: r = 10 v_x - 2 |v_y| - 0.01 \|a\|^2
    Terms:
        speed: forward speed
        straight: cost of sideways speed
        ctrl: cost of large actions
    """
    speed = 10.0 * info["x_velocity"]
    straight = -2.0 * np.abs(info["y_velocity"])
    ctrl = -0.01 * np.sum(np.square(action), axis=-1)
    return speed + straight + ctrl, {"speed": speed, "straight": straight, "ctrl": ctrl}
