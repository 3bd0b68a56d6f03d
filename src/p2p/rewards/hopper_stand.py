"""Stand still and upright."""

import numpy as np

ENV_ID = "Hopper-v5"


def reward_fn(obs, action, next_obs, info):
    r"""Stand still and upright.

    LaTeX: r = e^{-20 (z - 1.25)^2} + e^{-20 \theta^2} - 0.5 |v_x| - 0.01 \|a\|^2
    Terms:
        height: closeness to standing height
        upright: closeness to no lean
        still: cost of moving
        ctrl: cost of large actions
    """
    torso_height, lean = next_obs[..., 0], next_obs[..., 1]
    height = np.exp(-20.0 * np.square(torso_height - 1.25))
    upright = np.exp(-20.0 * np.square(lean))
    still = -0.5 * np.abs(info["x_velocity"])
    ctrl = -0.01 * np.sum(np.square(action), axis=-1)
    terms = {"height": height, "upright": upright, "still": still, "ctrl": ctrl}
    return height + upright + still + ctrl, terms
