"""Use no force."""

import numpy as np


def reward_fn(obs, action, next_obs, info):
    r"""Act as little as possible.

    LaTeX: r = -\|a\|^2 / 10
    Terms:
        effort: cost of large actions
    """
    effort = -0.1 * np.sum(np.square(action), axis=-1)
    return effort, {"effort": effort}
