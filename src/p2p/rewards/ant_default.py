"""The reward that Ant-v5 comes with, term by term."""

ENV_ID = "Ant-v5"


def reward_fn(obs, action, next_obs, info):
    r"""The reward that Ant-v5 comes with, term by term.

    LaTeX: r = v_x + 1 - 0.5 \|a\|^2 - 5 \cdot 10^{-4} \|f\|^2
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
