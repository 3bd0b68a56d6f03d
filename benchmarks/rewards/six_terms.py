"""A reward of six terms for HalfCheetah, Ant and Humanoid, as a person would write one."""

import numpy as np


def reward_fn(obs, action, next_obs, info):
    r"""Run forward, upright, calmly.

    LaTeX: r = 2 \min(v_x, 5) - 0.05 \|a\|^2 - 0.1 |z - z'| - 0.1 q^2 - 0.001 \|v\|^2 + 1
    Terms:
        speed: forward speed, up to 5 m/s
        ctrl: cost of large actions
        bounce: cost of changing height
        lean: cost of leaning
        calm: cost of the first velocities
        alive: for every step
    """
    speed = 2.0 * np.minimum(info["x_velocity"], 5.0)
    ctrl = -0.05 * np.sum(np.square(action), axis=-1)
    bounce = -0.1 * np.abs(next_obs[..., 0] - obs[..., 0])
    lean = -0.1 * np.square(next_obs[..., 1])
    calm = -0.001 * np.sum(np.square(next_obs[..., 8:14]), axis=-1)
    alive = 1.0
    total = speed + ctrl + bounce + lean + calm + alive
    return total, {
        "speed": speed,
        "ctrl": ctrl,
        "bounce": bounce,
        "lean": lean,
        "calm": calm,
        "alive": alive,
    }
