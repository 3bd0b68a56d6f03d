"""Balance the pole with the cart in the middle."""

import numpy as np

ENV_ID = "InvertedPendulum-v5"


def reward_fn(obs, action, next_obs, info):
    r"""Balance the pole with the cart in the middle.

    LaTeX: r = 1 - 5 \theta^2 - x^2 - 0.01 a^2
    Terms:
        alive: for every step the pole stands
        upright: cost of the pole's angle
        centre: cost of leaving the middle
        ctrl: cost of large actions
    """
    cart, angle = next_obs[..., 0], next_obs[..., 1]
    alive = 1.0
    upright = -5.0 * np.square(angle)
    centre = -np.square(cart)
    ctrl = -0.01 * np.sum(np.square(action), axis=-1)
    terms = {"alive": alive, "upright": upright, "centre": centre, "ctrl": ctrl}
    return alive + upright + centre + ctrl, terms
