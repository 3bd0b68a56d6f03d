"""Spin counterclockwise on the spot, torso upright."""

import numpy as np

ENV_ID = "Ant-v5"


def reward_fn(obs, action, next_obs, info):
    r"""Spin counterclockwise on the spot, torso upright.

    LaTeX: r = \min(\omega_z, 6) + 0.5 (1 - 2 (q_x^2 + q_y^2)) - 0.5 \|v_{xy}\| - 0.05 \|a\|^2
    Terms:
        spin: yaw rate, up to 6 rad/s
        upright: how far the torso's axis points up
        stay: cost of moving away
        ctrl: cost of large actions
    """
    yaw_rate = next_obs[..., 18]
    tilt_x, tilt_y = next_obs[..., 2], next_obs[..., 3]
    spin = np.minimum(yaw_rate, 6.0)
    upright = 0.5 * (1.0 - 2.0 * (np.square(tilt_x) + np.square(tilt_y)))
    stay = -0.5 * np.hypot(info["x_velocity"], info["y_velocity"])
    ctrl = -0.05 * np.sum(np.square(action), axis=-1)
    terms = {"spin": spin, "upright": upright, "stay": stay, "ctrl": ctrl}
    return spin + upright + stay + ctrl, terms
