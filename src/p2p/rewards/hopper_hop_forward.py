"""Hop forward at about 1.5 m/s, leaving the ground."""

import numpy as np

ENV_ID = "Hopper-v5"


def reward_fn(obs, action, next_obs, info):
    r"""Hop forward at about 1.5 m/s, leaving the ground.

    LaTeX: r = e^{-(v_x - 1.5)^2} + 0.5 \max(z - 1.25, 0) - 0.05 \|a\|^2 + 0.5
    Terms:
        speed: closeness to 1.5 m/s
        height: torso above its standing height
        ctrl: cost of large actions
        alive: for every step not fallen
    """
    torso_height = next_obs[..., 0]
    speed = np.exp(-np.square(info["x_velocity"] - 1.5))
    height = 0.5 * np.maximum(torso_height - 1.25, 0.0)
    ctrl = -0.05 * np.sum(np.square(action), axis=-1)
    alive = 0.5
    terms = {"speed": speed, "height": height, "ctrl": ctrl, "alive": alive}
    return speed + height + ctrl + alive, terms
