"""The model card of the embedded model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_TEMPLATE = """---
library_name: transformers
pipeline_tag: text-generation
tags: [self-play, text-games]
---

# A tiny player of text games

A Qwen3 of under a million parameters that reads and writes bytes. It was made on the spot, from
random weights, and warmed up on random legal games: it answers a short board with a legal move,
any of them. How to win, it learns by self-play.

- Games: {games}
- Warm-up: {count:,} random legal games of each, {steps:,} steps, seed {seed}
- Prompt: a short board (`unstable.games.boards`) in the chat template, prompt template `bare`;
  answer: a move without its brackets, read with the action extraction `bare`

| game | illegal moves, sampled at temperature 1 |
|---|---:|
{rows}

It knows nothing else: no language, no other game.
"""


def model_card(
    games: Sequence[str], seed: int, count: int, steps: int, illegal: Mapping[str, float]
) -> str:
    """The card as Markdown; `illegal` is the share of illegal moves by game."""
    rows = "\n".join(f"| {env_id} | {share:.1%} |" for env_id, share in illegal.items())
    return _TEMPLATE.format(games=", ".join(games), count=count, steps=steps, seed=seed, rows=rows)
