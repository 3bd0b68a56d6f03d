"""The embedded model: small enough to be made, and to learn, on one CPU core in minutes.

A Qwen3 of under a million parameters that reads and writes bytes, warmed up on random legal games
so that its moves are legal. In its folder it is a model like any other: `transformers`, PEFT and
vLLM load it.

    from unstable.tiny import make_tiny, tiny_model
    make_tiny("tiny", games=("TicTacToe-v0-train",))
    tiny_model(games=("TicTacToe-v0-train",))  # the same, kept in the user's cache
"""

from unstable.tiny.make import DEFAULT_GAMES, TinyProgress, WarmUp, make_tiny, tiny_model

__all__ = ["DEFAULT_GAMES", "TinyProgress", "WarmUp", "make_tiny", "tiny_model"]
