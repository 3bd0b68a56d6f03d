"""The reward that InvertedPendulum-v5 comes with, term by term."""

ENV_ID = "InvertedPendulum-v5"


def reward_fn(obs, action, next_obs, info):
    r"""The reward that InvertedPendulum-v5 comes with, term by term.

    LaTeX: r = [\,|\theta| \leq 0.2\,]
    Terms:
        survive: one while the pole stands
    """
    survive = info["reward_survive"]
    terms = {"survive": survive}
    return survive, terms
