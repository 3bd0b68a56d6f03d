"""Balance both poles, calmly, with the cart in the middle."""

import numpy as np

ENV_ID = "InvertedDoublePendulum-v5"


def reward_fn(obs, action, next_obs, info):
    r"""Balance both poles, calmly, with the cart in the middle.

    LaTeX: r = \cos \theta_1 + \cos(\theta_1 + \theta_2) - 0.1 x^2 - 0.01 \|\omega\|^2 - 0.01 a^2
    Terms:
        lower: lower pole upright
        upper: upper pole upright
        centre: cost of leaving the middle
        calm: cost of joint speeds
        ctrl: cost of large actions
    """
    cart = next_obs[..., 0]
    sin_1, sin_2 = next_obs[..., 1], next_obs[..., 2]
    cos_1, cos_2 = next_obs[..., 3], next_obs[..., 4]
    lower = 1.0 * cos_1
    upper = cos_1 * cos_2 - sin_1 * sin_2
    centre = -0.1 * np.square(cart)
    calm = -0.01 * np.sum(np.square(next_obs[..., 6:8]), axis=-1)
    ctrl = -0.01 * np.sum(np.square(action), axis=-1)
    terms = {"lower": lower, "upper": upper, "centre": centre, "calm": calm, "ctrl": ctrl}
    return lower + upper + centre + calm + ctrl, terms
