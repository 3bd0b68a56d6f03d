"""The reward that HumanoidStandup-v5 comes with, term by term."""

ENV_ID = "HumanoidStandup-v5"


def reward_fn(obs, action, next_obs, info):
    r"""The reward that HumanoidStandup-v5 comes with, term by term.

    LaTeX: r = z / h - 0.1 \|a\|^2 - 5 \cdot 10^{-7} \|f\|^2 + 1
    Terms:
        linup: height of the torso over the time step
        ctrl: cost of large actions
        impact: cost of contact forces
        alive: constant
    """
    linup = info["reward_linup"]
    ctrl = info["reward_quadctrl"]
    impact = info["reward_impact"]
    alive = 1.0
    terms = {"linup": linup, "ctrl": ctrl, "impact": impact, "alive": alive}
    return linup + ctrl + impact + alive, terms
