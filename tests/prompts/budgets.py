"""How long a prompt may be."""

from __future__ import annotations

CHARACTERS_PER_TOKEN = 3.5
"""A cautious estimate for English with code, numbers and tables."""

TOKEN_BUDGETS: dict[str, int] = {
    "environment_chooser": 1_000,
    "intent_elicitor": 3_000,
    "reward_author": 7_500,
    "reward_reviewer": 9_000,
    "judge_author": 5_000,
    "judge_reviewer": 6_500,
    "fix": 1_000,
    "visual_judge": 2_500,
    "synthesiser": 5_500,
    "revise_agent": 12_000,
    "session_analyzer": 4_000,
}
"""By role: instructions and prompt together, for any listed environment, with ten criteria, a
function of a hundred lines and ten iterations behind it, where the role is told of them."""


def count_tokens(text: str) -> int:
    """About how many tokens a text has, for any model."""
    return round(len(text) / CHARACTERS_PER_TOKEN)
