"""Stand still."""

import numpy as np


def reward_fn(obs, action, next_obs, info):
    r"""Stand still and upright.

    LaTeX: r = e^{-4 \|v\|^2} + u_z / 2 - \|a\|^2 / 200
    Terms:
        still: best where the centre of mass does not move
        upright: the torso's own z axis, how far up it points
        effort: cost of large actions
    """
    terms = {
        "still": np.exp(-4.0 * np.sum(np.square(info["com_velocity"]), axis=-1)),
        "upright": 0.5 * info["body_up"][..., 1, 2],
        "effort": -0.005 * np.sum(np.square(action), axis=-1),
    }
    return sum(terms.values()), terms
