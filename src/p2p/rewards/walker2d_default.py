"""The reward that Walker2d-v5 comes with, term by term."""

ENV_ID = "Walker2d-v5"


def reward_fn(obs, action, next_obs, info):
    r"""The reward that Walker2d-v5 comes with, term by term.

    LaTeX: r = v_x + 1 - 10^{-3} \|a\|^2
    Terms:
        forward: forward speed along x
        survive: bonus while healthy
        ctrl: cost of large actions
    """
    forward = info["reward_forward"]
    survive = info["reward_survive"]
    ctrl = info["reward_ctrl"]
    terms = {"forward": forward, "survive": survive, "ctrl": ctrl}
    return forward + survive + ctrl, terms
