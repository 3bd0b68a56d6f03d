"""The reward that Swimmer-v5 comes with, term by term."""

ENV_ID = "Swimmer-v5"


def reward_fn(obs, action, next_obs, info):
    r"""The reward that Swimmer-v5 comes with, term by term.

    LaTeX: r = v_x - 10^{-4} \|a\|^2
    Terms:
        forward: forward speed along x
        ctrl: cost of large actions
    """
    forward = info["reward_forward"]
    ctrl = info["reward_ctrl"]
    terms = {"forward": forward, "ctrl": ctrl}
    return forward + ctrl, terms
