"""A reward of two terms that needs nothing of an environment but its observation."""

import numpy as np


def reward_fn(obs, action, next_obs, info):
    r"""Be calm.

    LaTeX: r = 1 - 0.05 \|a\|^2
    Terms:
        ctrl: cost of large actions
        alive: for every step
    """
    ctrl = -0.05 * np.sum(np.square(action), axis=-1)
    alive = 1.0 + 0.0 * next_obs[..., 0]
    return ctrl + alive, {"ctrl": ctrl, "alive": alive}
