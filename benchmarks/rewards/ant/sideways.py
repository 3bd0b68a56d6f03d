"""Go to the left without turning."""

import numpy as np


def reward_fn(obs, action, next_obs, info):
    r"""Move along +y, not along x.

    LaTeX: r = v_y - |v_x| / 2 + u_z / 5 - \|a\|^2 / 200
    Terms:
        left: velocity along +y
        drift: cost of moving along x
        upright: the torso's own z axis, how far up it points
        effort: cost of large actions
    """
    velocity = info["com_velocity"]
    terms = {
        "left": velocity[..., 1],
        "drift": -0.5 * np.abs(velocity[..., 0]),
        "upright": 0.2 * info["body_up"][..., 1, 2],
        "effort": -0.005 * np.sum(np.square(action), axis=-1),
    }
    return sum(terms.values()), terms
