import numpy as np


def reward_fn(obs, action, next_obs, info):
    r"""
    LaTeX: r = v_x - 0.1 \|a\|^2
    Terms:
        speed: forward velocity
        effort: control penalty
    """
    speed = info["x_velocity"]
    effort = -0.1 * np.sum(action**2, axis=-1)
    return speed + effort, {"speed": speed, "effort": effort}
