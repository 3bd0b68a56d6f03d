"""Run backward fast."""

import numpy as np

ENV_ID = "HalfCheetah-v5"


def reward_fn(obs, action, next_obs, info):
    r"""Run backward fast.

    LaTeX: r = -v_x - 0.1 \|a\|^2
    Terms:
        speed: backward speed
        ctrl: cost of large actions
    """
    speed = -info["x_velocity"]
    ctrl = -0.1 * np.sum(np.square(action), axis=-1)
    return speed + ctrl, {"speed": speed, "ctrl": ctrl}
