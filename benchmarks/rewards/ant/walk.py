"""Walk forward at 1 m/s."""

import numpy as np


def reward_fn(obs, action, next_obs, info):
    r"""Walk straight ahead at 1 m/s.

    LaTeX: r = e^{-(v_x - 1)^2 - v_y^2} + u_z / 5 - \|a\|^2 / 200
    Terms:
        velocity: best at 1 m/s along +x
        upright: the torso's own z axis, how far up it points
        effort: cost of large actions
    """
    velocity = info["com_velocity"]
    off = np.square(velocity[..., 0] - 1.0) + np.square(velocity[..., 1])
    terms = {
        "velocity": np.exp(-off),
        "upright": 0.2 * info["body_up"][..., 1, 2],
        "effort": -0.005 * np.sum(np.square(action), axis=-1),
    }
    return sum(terms.values()), terms
