"""Jump."""

import numpy as np


def reward_fn(obs, action, next_obs, info):
    r"""Get the centre of mass high up, on the spot.

    LaTeX: r = 4 z + \max(v_z, 0) - (v_x^2 + v_y^2) / 10 - \|a\|^2 / 200
    Terms:
        height: of the centre of mass
        rise: velocity upward
        drift: cost of leaving the spot
        effort: cost of large actions
    """
    velocity = info["com_velocity"]
    terms = {
        "height": 4.0 * info["com"][..., 2],
        "rise": np.maximum(velocity[..., 2], 0.0),
        "drift": -0.1 * np.sum(np.square(velocity[..., 0:2]), axis=-1),
        "effort": -0.005 * np.sum(np.square(action), axis=-1),
    }
    return sum(terms.values()), terms
