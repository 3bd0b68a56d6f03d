"""The reward that Pusher-v5 comes with, term by term."""

ENV_ID = "Pusher-v5"


def reward_fn(obs, action, next_obs, info):
    r"""The reward that Pusher-v5 comes with, term by term.

    LaTeX: r = -\|o - g\| - 0.1 \|a\|^2 - 0.5 \|o - p\|
    Terms:
        dist: distance from object to goal, negative
        ctrl: cost of large actions
        near: distance from hand to object, negative
    """
    dist = info["reward_dist"]
    ctrl = info["reward_ctrl"]
    near = info["reward_near"]
    terms = {"dist": dist, "ctrl": ctrl, "near": near}
    return dist + ctrl + near, terms
