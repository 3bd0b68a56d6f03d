"""Get up from lying and stay up, in rewards of ordinary size."""

import numpy as np

ENV_ID = "HumanoidStandup-v5"


def reward_fn(obs, action, next_obs, info):
    r"""Get up from lying and stay up, in rewards of ordinary size.

    LaTeX: r = 2 z + v_z^{+} + (1 - 2 (q_x^2 + q_y^2)) - 0.1 \|a\|^2
    Terms:
        height: height of the torso
        rise: upward speed, up to 1 m/s
        upright: how far the torso's axis points up
        ctrl: cost of large actions
    """
    torso_height, up_speed = next_obs[..., 0], next_obs[..., 24]
    tilt_x, tilt_y = next_obs[..., 2], next_obs[..., 3]
    height = 2.0 * torso_height
    rise = np.clip(up_speed, 0.0, 1.0)
    upright = 1.0 - 2.0 * (np.square(tilt_x) + np.square(tilt_y))
    ctrl = -0.1 * np.sum(np.square(action), axis=-1)
    terms = {"height": height, "rise": rise, "upright": upright, "ctrl": ctrl}
    return height + rise + upright + ctrl, terms
