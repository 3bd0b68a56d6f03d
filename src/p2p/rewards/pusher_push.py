"""Push the object onto the goal."""

import numpy as np

ENV_ID = "Pusher-v5"


def reward_fn(obs, action, next_obs, info):
    r"""Push the object onto the goal.

    LaTeX: r = -0.5 \|p - o\| - 2 \|o - g\| + e^{-50 \|o - g\|^2} - 0.05 \|a\|^2
    Terms:
        near: distance from hand to object
        push: distance from object to goal
        on_goal: bonus close to the goal
        ctrl: cost of large actions
    """
    hand, thing, goal = next_obs[..., 14:17], next_obs[..., 17:20], next_obs[..., 20:23]
    gap = np.linalg.norm(thing - goal, axis=-1)
    near = -0.5 * np.linalg.norm(hand - thing, axis=-1)
    push = -2.0 * gap
    on_goal = np.exp(-50.0 * np.square(gap))
    ctrl = -0.05 * np.sum(np.square(action), axis=-1)
    terms = {"near": near, "push": push, "on_goal": on_goal, "ctrl": ctrl}
    return near + push + on_goal + ctrl, terms
