import numpy as np


def reward_fn(obs, action, next_obs, info):
    r"""
    Hold the pole upright, near the middle of the rail.

    LaTeX: r = 1 - \theta^2 - 0.1 x^2
    Terms:
        alive: one for every step that the pole is up
        lean: squared angle of the pole, as a penalty
        away: squared distance of the cart from the middle, as a penalty
    """
    alive = np.ones_like(next_obs[..., 0])
    lean = -(next_obs[..., 1] ** 2)
    away = -0.1 * next_obs[..., 0] ** 2
    return alive + lean + away, {"alive": alive, "lean": lean, "away": away}
