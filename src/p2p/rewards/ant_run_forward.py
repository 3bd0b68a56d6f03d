"""Run along x without leaving the line."""

import numpy as np

ENV_ID = "Ant-v5"


def reward_fn(obs, action, next_obs, info):
    r"""Run along x without leaving the line.

    LaTeX: r = v_x - 0.5 |v_y| - 0.1 \|a\|^2 + 0.5
    Terms:
        speed: forward speed
        straight: cost of sideways speed
        ctrl: cost of large actions
        alive: for every step not fallen
    """
    speed = info["x_velocity"]
    straight = -0.5 * np.abs(info["y_velocity"])
    ctrl = -0.1 * np.sum(np.square(action), axis=-1)
    alive = 0.5
    terms = {"speed": speed, "straight": straight, "ctrl": ctrl, "alive": alive}
    return speed + straight + ctrl + alive, terms
