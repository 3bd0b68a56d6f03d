"""A reward of six terms for a Unitree G1 of mjlab's, as a person would write one."""

import numpy as np


def reward_fn(obs, action, next_obs, info):
    r"""Walk forward at 1 m/s, upright.

    LaTeX: r = 2 e^{-4 (v_x - 1)^2} - v_y^2 / 2 - \|g_{xy}\|^2 - \|w - w'\|^2 / 20 - \|a\|^2 / 200 + 1
    Terms:
        forward: forward speed of the base, best at 1 m/s
        sideways: cost of drifting
        upright: cost of leaning
        calm: cost of changes of turning and leaning
        effort: cost of large actions
        alive: for every step
    """
    velocity, gravity = next_obs[..., 0:3], next_obs[..., 6:9]
    terms = {
        "forward": 2.0 * np.exp(-4.0 * np.square(velocity[..., 0] - 1.0)),
        "sideways": -0.5 * np.square(velocity[..., 1]),
        "upright": -np.sum(np.square(gravity[..., 0:2]), axis=-1),
        "calm": -0.05 * np.sum(np.square(next_obs[..., 3:9] - obs[..., 3:9]), axis=-1),
        "effort": -0.005 * np.sum(np.square(action), axis=-1),
        "alive": 1.0 + 0.0 * info["com"][..., 2],
    }
    return sum(terms.values()), terms
