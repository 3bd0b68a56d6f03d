"""The embedded model: its tokenizer of bytes, its network, and its moves in a batch."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from unstable.core import derive_seed
from unstable.engines import Sampling
from unstable.utils.files import write_whole
from unstable.utils.templates import tokenize_prompt

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM


END, PAD, MOVE = "<|end|>", "<|pad|>", "<|move|>"
"""Token 256 ends an answer, 257 is padding, 258 stands between what is asked and the answer."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    f"{{{{ '{END}' if message['role'] == 'assistant' else '{MOVE}' }}}}{{% endfor %}}"
)
"""One token of markup a message: on a CPU every token of a prompt is paid for."""


def byte_tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = _byte_symbols()
    model = models.BPE(vocab={symbol: byte for byte, symbol in enumerate(symbols)}, merges=[])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END, PAD, MOVE])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write it so that versions of `transformers` before 5 know its class, too."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_whole(path, json.dumps(config, indent=2) + "\n")


def _byte_symbols() -> list[str]:
    """Return the printable character that stands for each byte in byte-level vocabularies.

    Bytes that are printable in Latin-1 stand for themselves, the others for characters from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    shifted = {byte: 256 + number for number, byte in enumerate(others)}
    return [chr(shifted.get(byte, byte)) for byte in range(256)]


TEMPLATE = "bare"
"""The prompt template that the model is made for."""
MOST_ROWS = 256
"""Boards that are answered at once."""
MAX_LENGTH = 2048
"""Positions the model is made for; boards need a few dozen."""


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Return a network with random weights, the same for the same seed."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        initializer_range=0.09,  # 1 / sqrt(hidden): the usual 0.02 is for models ten times as wide
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


@dataclass(frozen=True)
class Position:
    """A position: what the player sees, and its legal moves."""

    board: str
    moves: tuple[str, ...]
    """Without their brackets: those cost tokens, and the action extraction `bare` puts them on."""


@dataclass(frozen=True)
class TokenTurn:
    """A position as tokens: the prompt and every legal answer."""

    prompt: list[int]
    answers: list[list[int]]
    """Each with the token that ends it."""


def tokenize_positions(
    tokenizer: PreTrainedTokenizerFast, positions: Sequence[Position]
) -> list[TokenTurn]:
    """Tokenise positions; equal boards and moves are encoded once."""

    @cache
    def prompt(board: str) -> list[int]:
        return tokenize_prompt(TEMPLATE, board, tokenizer)

    @cache
    def answer(move: str) -> list[int]:
        return [*tokenizer.encode(move, add_special_tokens=False), int(tokenizer.eos_token_id)]

    return [TokenTurn(prompt(p.board), [answer(move) for move in p.moves]) for p in positions]


def compute_token_shares(answers: Sequence[list[int]], chosen: list[int]) -> list[dict[int, float]]:
    """Return for each token of an answer the chances of all tokens that may stand there.

    Of the answers that begin like the chosen one, each is as likely as the others.
    """
    shares = []
    for place in range(len(chosen)):
        alike = [answer for answer in answers if answer[:place] == chosen[:place]]
        counts = Counter(answer[place] for answer in alike)
        shares.append({token: count / len(alike) for token, count in counts.items()})
    return shares


@dataclass(frozen=True)
class TurnBatch:
    """Turns with one answer each, and the target distribution of every answer token."""

    ids: Tensor
    """By turn and place. Padding stands at the end: a causal model does not look there."""
    before: Tensor
    """Per token of an answer, where in the flattened ids the one before it is."""
    which: Tensor
    """Per token that may be said: for which of `before`."""
    tokens: Tensor
    shares: Tensor

    def loss(self, model: Qwen3ForCausalLM) -> Tensor:
        import torch

        hidden = model.model(input_ids=self.ids, use_cache=False).last_hidden_state
        logprobs = torch.log_softmax(model.lm_head(hidden.flatten(0, 1)[self.before]), dim=-1)
        return -(self.shares * logprobs[self.which, self.tokens]).sum() / len(self.before)


def make_batch(drawn: Sequence[tuple[TokenTurn, int]], pad: int) -> TurnBatch:
    import torch

    rows = [turn.prompt + turn.answers[number] for turn, number in drawn]
    width = max(map(len, rows))
    before: list[int] = []
    targets: list[tuple[int, int, float]] = []
    for row, (turn, number) in enumerate(drawn):
        start = row * width + len(turn.prompt) - 1
        for place, shares in enumerate(compute_token_shares(turn.answers, turn.answers[number])):
            targets += [(len(before), token, share) for token, share in shares.items()]
            before.append(start + place)
    which, tokens, weights = zip(*targets, strict=True)
    return TurnBatch(
        torch.tensor([row + [pad] * (width - len(row)) for row in rows]),
        torch.tensor(before),
        torch.tensor(which),
        torch.tensor(tokens),
        torch.tensor(weights),
    )


def sample_moves(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    boards: Sequence[str],
    seed: int,
    max_tokens: int = 16,
) -> list[str]:
    """Sample a move per board at temperature 1; the same ones for the same seed."""
    from unstable.engines.decoder import Decoder, DecodingRow

    rows = [
        DecodingRow(
            tuple(tokenize_prompt(TEMPLATE, board, tokenizer)),
            Sampling(seed=derive_seed(seed, number)),
            max_tokens,
        )
        for number, board in enumerate(boards)
    ]
    # A copy: the decoder replaces layers.
    decoder = Decoder(copy.deepcopy(model), MOST_ROWS, frozenset({int(tokenizer.eos_token_id)}))
    waiting = list(rows)
    while waiting or decoder.rows:
        room = MOST_ROWS - len(decoder.rows)
        decoder.step(waiting[:room])
        del waiting[:room]
    answers = [row.tokens for row in rows]
    moves: list[str] = tokenizer.batch_decode(answers, skip_special_tokens=True)
    return moves
