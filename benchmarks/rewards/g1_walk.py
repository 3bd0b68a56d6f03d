"""A reward of six terms for a Unitree G1 of mjlab's, as a person would write one."""

import numpy as np


def reward_fn(obs, action, next_obs, info):
    r"""Walk forward at 1 m/s, upright.

    LaTeX: r = 2 e^{-4 \|v - (1, 0)\|^2} - \|g_{xy}\|^2 - c^2/20 - \|a\|^2/200 - 5 (z - 0.7)^2 + 1
    Terms:
        velocity: velocity of the base, best at 1 m/s straight ahead
        upright: cost of leaning
        calm: cost of changes of turning and leaning
        effort: cost of large actions
        height: cost of crouching
        alive: for every step
    """
    velocity, gravity = next_obs[..., 0:2], next_obs[..., 6:9]
    ahead = np.square(velocity[..., 0] - 1.0) + np.square(velocity[..., 1])
    terms = {
        "velocity": 2.0 * np.exp(-4.0 * ahead),
        "upright": -np.sum(np.square(gravity[..., 0:2]), axis=-1),
        "calm": -0.05 * np.sum(np.square(next_obs[..., 3:9] - obs[..., 3:9]), axis=-1),
        "effort": -0.005 * np.sum(np.square(action), axis=-1),
        "height": -5.0 * np.square(info["com"][..., 2] - 0.7),
        "alive": np.ones(np.shape(action)[:-1]),
    }
    return sum(terms.values()), terms
