"""The reward that Humanoid-v5 comes with, term by term."""

ENV_ID = "Humanoid-v5"


def reward_fn(obs, action, next_obs, info):
    r"""The reward that Humanoid-v5 comes with, term by term.

    LaTeX: r = 1.25 v_x + 5 - 0.1 \|a\|^2 - 5 \cdot 10^{-7} \|f\|^2
    Terms:
        forward: forward speed along x
        survive: bonus while healthy
        ctrl: cost of large actions
        contact: cost of contact forces
    """
    forward = info["reward_forward"]
    survive = info["reward_survive"]
    ctrl = info["reward_ctrl"]
    contact = info["reward_contact"]
    terms = {"forward": forward, "survive": survive, "ctrl": ctrl, "contact": contact}
    return forward + survive + ctrl + contact, terms
