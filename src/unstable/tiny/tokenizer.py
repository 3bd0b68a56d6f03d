"""One token per byte, and three that are none: end of the answer, padding, your move."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from unstable.utils.files import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedTokenizerFast

END, PAD, MOVE = "<|end|>", "<|pad|>", "<|move|>"
"""Token 256 ends an answer, 257 is padding, 258 stands between what is asked and the answer."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    f"{{{{ '{END}' if message['role'] == 'assistant' else '{MOVE}' }}}}{{% endfor %}}"
)
"""One token of markup a message: on a CPU every token of a prompt is paid for."""


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer; a byte's token is its value."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = _byte_symbols()
    model = models.BPE(vocab={symbol: byte for byte, symbol in enumerate(symbols)}, merges=[])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END, PAD, MOVE])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write it so that also versions of `transformers` before 5 know its class."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_whole(path, json.dumps(config, indent=2) + "\n")


def _byte_symbols() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies.

    Bytes that are printable in Latin-1 stand for themselves, the others for characters from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    shifted = {byte: 256 + number for number, byte in enumerate(others)}
    return [chr(shifted.get(byte, byte)) for byte in range(256)]
