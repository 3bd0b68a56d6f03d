"""The reward that InvertedDoublePendulum-v5 comes with, term by term."""

ENV_ID = "InvertedDoublePendulum-v5"


def reward_fn(obs, action, next_obs, info):
    r"""The reward that InvertedDoublePendulum-v5 comes with, term by term.

    LaTeX: r = 10 - 0.01 x^2 - (y - 2)^2 - 10^{-3} \omega_1^2 - 5 \cdot 10^{-3} \omega_2^2
    Terms:
        survive: bonus while the tip is up
        distance: tip away from the upright place
        velocity: joint speeds
    """
    survive = info["reward_survive"]
    distance = info["distance_penalty"]
    velocity = info["velocity_penalty"]
    terms = {"survive": survive, "distance": distance, "velocity": velocity}
    return survive + distance + velocity, terms
