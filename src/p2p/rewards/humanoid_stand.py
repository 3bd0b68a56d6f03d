"""Stand still and tall."""

import numpy as np

ENV_ID = "Humanoid-v5"


def reward_fn(obs, action, next_obs, info):
    r"""Stand still and tall.

    LaTeX: r = 2 e^{-10 (z - 1.4)^2} + 2 (1 - 2 (q_x^2 + q_y^2)) - \|v_{xy}\| - 0.1 \|a\|^2
    Terms:
        height: closeness to standing height
        upright: how far the torso's axis points up
        still: cost of moving
        ctrl: cost of large actions
    """
    torso_height = next_obs[..., 0]
    tilt_x, tilt_y = next_obs[..., 2], next_obs[..., 3]
    height = 2.0 * np.exp(-10.0 * np.square(torso_height - 1.4))
    upright = 2.0 * (1.0 - 2.0 * (np.square(tilt_x) + np.square(tilt_y)))
    still = -np.hypot(info["x_velocity"], info["y_velocity"])
    ctrl = -0.1 * np.sum(np.square(action), axis=-1)
    terms = {"height": height, "upright": upright, "still": still, "ctrl": ctrl}
    return height + upright + still + ctrl, terms
