"""The reward that Reacher-v5 comes with, term by term."""

ENV_ID = "Reacher-v5"


def reward_fn(obs, action, next_obs, info):
    r"""The reward that Reacher-v5 comes with, term by term.

    LaTeX: r = -\|p - g\| - 0.1 \|a\|^2
    Terms:
        dist: distance from fingertip to target, negative
        ctrl: cost of large actions
    """
    dist = info["reward_dist"]
    ctrl = info["reward_ctrl"]
    terms = {"dist": dist, "ctrl": ctrl}
    return dist + ctrl, terms
