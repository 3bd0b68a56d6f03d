"""Turn counterclockwise."""

import numpy as np

ENV_ID = "Swimmer-v5"


def reward_fn(obs, action, next_obs, info):
    r"""Turn counterclockwise.

    LaTeX: r = \dot\phi - 0.01 \|a\|^2
    Terms:
        turn: turning rate of the front link
        ctrl: cost of large actions
    """
    turning_rate = next_obs[..., 5]
    turn = 1.0 * turning_rate
    ctrl = -0.01 * np.sum(np.square(action), axis=-1)
    return turn + ctrl, {"turn": turn, "ctrl": ctrl}
