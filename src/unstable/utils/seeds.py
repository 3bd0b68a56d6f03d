"""Seeds made of seeds."""

from __future__ import annotations

from hashlib import blake2b


def derived_seed(*parts: int | str) -> int:
    """A seed that depends on every part and on nothing else: 31 bits, as every library takes."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(blake2b(text, digest_size=4).digest()) >> 1
