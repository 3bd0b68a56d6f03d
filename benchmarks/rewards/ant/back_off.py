"""Walk backward slowly."""

import numpy as np


def reward_fn(obs, action, next_obs, info):
    r"""Walk backward at 0.4 m/s.

    LaTeX: r = e^{-4 (v_x + 0.4)^2} + u_z / 5 - \|a\|^2 / 200
    Terms:
        velocity: best at 0.4 m/s along -x
        upright: the torso's own z axis, how far up it points
        effort: cost of large actions
    """
    terms = {
        "velocity": np.exp(-4.0 * np.square(info["com_velocity"][..., 0] + 0.4)),
        "upright": 0.2 * info["body_up"][..., 1, 2],
        "effort": -0.005 * np.sum(np.square(action), axis=-1),
    }
    return sum(terms.values()), terms
