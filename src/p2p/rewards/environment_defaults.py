r"""The rewards that Gymnasium's environments come with: the sums of their own terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_SOURCE = '''"""The reward that {env_id} comes with, term by term."""

ENV_ID = "{env_id}"


def reward_fn(obs, action, next_obs, info):
    r"""The reward that {env_id} comes with, term by term.

    LaTeX: r = {latex}
    Terms:
{meanings}
    """
    terms = {{
{values}
    }}
    return sum(terms.values()), terms
'''
_MEANINGS: Mapping[str, str] = {
    "forward": "forward speed along x",
    "survive": "bonus while healthy",
    "ctrl": "cost of large actions",
    "contact": "cost of contact forces",
    "linup": "height of the torso over the time step",
    "impact": "cost of contact forces",
    "alive": "constant",
    "near": "distance from hand to object, negative",
    "distance": "tip away from the upright place",
    "velocity": "joint speeds",
}
_TERMS: Mapping[str, tuple[str, str]] = {
    "Ant": (r"v_x + 1 - 0.5 \|a\|^2 - 5 \cdot 10^{-4} \|f\|^2", "forward survive ctrl contact"),
    "HalfCheetah": (r"v_x - 0.1 \|a\|^2", "forward ctrl"),
    "Hopper": (r"v_x + 1 - 10^{-3} \|a\|^2", "forward survive ctrl"),
    "Humanoid": (
        r"1.25 v_x + 5 - 0.1 \|a\|^2 - 5 \cdot 10^{-7} \|f\|^2",
        "forward survive ctrl contact",
    ),
    "HumanoidStandup": (
        r"z / h - 0.1 \|a\|^2 - 5 \cdot 10^{-7} \|f\|^2 + 1",
        "linup ctrl=reward_quadctrl impact alive=1.0",
    ),
    "InvertedDoublePendulum": (
        r"10 - 0.01 x^2 - (y - 2)^2 - 10^{-3} \omega_1^2 - 5 \cdot 10^{-3} \omega_2^2",
        "survive distance=distance_penalty velocity=velocity_penalty",
    ),
    "InvertedPendulum": (r"[\,|\theta| \leq 0.2\,]", "survive"),
    "Pusher": (r"-\|o - g\| - 0.1 \|a\|^2 - 0.5 \|o - p\|", "dist ctrl near"),
    "Reacher": (r"-\|p - g\| - 0.1 \|a\|^2", "dist ctrl"),
    "Swimmer": (r"v_x - 10^{-4} \|a\|^2", "forward ctrl"),
    "Walker2d": (r"v_x + 1 - 10^{-3} \|a\|^2", "forward survive ctrl"),
}
"""The formula, and the terms in the order of their sum; `=` where one is not `reward_TERM`."""
_OWN_MEANINGS: Mapping[tuple[str, str], str] = {
    ("InvertedDoublePendulum", "survive"): "bonus while the tip is up",
    ("InvertedPendulum", "survive"): "one while the pole stands",
    ("Pusher", "dist"): "distance from object to goal, negative",
    ("Reacher", "dist"): "distance from fingertip to target, negative",
}


def default_rewards() -> Iterator[tuple[str, str]]:
    """The name and the source of each, as a person would write it."""
    for name, (latex, terms) in _TERMS.items():
        meanings, values = [], []
        for entry in terms.split():
            term, _, key = entry.partition("=")
            value = key if key == "1.0" else f'info["{key or f"reward_{term}"}"]'
            meaning = _OWN_MEANINGS.get((name, term)) or _MEANINGS[term]
            meanings.append(f"        {term}: {meaning}")
            values.append(f'        "{term}": {value},')
        yield (
            f"{name.lower()}_default",
            _SOURCE.format(
                env_id=f"{name}-v5",
                latex=latex,
                meanings="\n".join(meanings),
                values="\n".join(values),
            ),
        )
