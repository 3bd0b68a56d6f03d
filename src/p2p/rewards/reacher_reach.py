"""Bring the fingertip to the target and hold it there."""

import numpy as np

ENV_ID = "Reacher-v5"


def reward_fn(obs, action, next_obs, info):
    r"""Bring the fingertip to the target and hold it there.

    LaTeX: r = -5 d + e^{-100 d^2} - 0.01 \|\dot q\|^2 - 0.05 \|a\|^2,\ d = \|p - g\|
    Terms:
        distance: distance from fingertip to target
        on_target: bonus close to the target
        calm: cost of joint speed
        ctrl: cost of large actions
    """
    gap = np.hypot(next_obs[..., 8], next_obs[..., 9])
    joint_speeds = next_obs[..., 6:8]
    distance = -5.0 * gap
    on_target = np.exp(-100.0 * np.square(gap))
    calm = -0.01 * np.sum(np.square(joint_speeds), axis=-1)
    ctrl = -0.05 * np.sum(np.square(action), axis=-1)
    terms = {"distance": distance, "on_target": on_target, "calm": calm, "ctrl": ctrl}
    return distance + on_target + calm + ctrl, terms
