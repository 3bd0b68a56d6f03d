"""Pages of keys and values for rows of any length."""

from __future__ import annotations

import torch
from torch import Tensor

PAGE = 64
"""Tokens of a page."""
SLAB_BYTES, SLAB_PAGES = 2**30, 256
"""Memory is taken by slabs of at most so much."""


class PagePool:
    """Pages of PAGE tokens for all layers, known by their addresses.

    A kernel finds them by address alone, so that recorded steps stay valid when the memory is given
    back and other memory is taken later.
    """

    def __init__(
        self, layers: int, kv_heads: int, size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = (layers, 2, kv_heads, PAGE, size)
        self.layer_size = 2 * kv_heads * PAGE * size
        """Numbers of a layer: its keys, (kv_heads, PAGE, size), and then its values."""
        self._dtype, self._device = dtype, device
        self._pages: dict[int, Tensor] = {}
        self._free: list[int] = []
        self._users: dict[int, int] = {}
        """Of pages that have more than one."""

    def take(self) -> int:
        """Return the address of an unused page; its content is undefined."""
        if not self._free:
            self._grow()
        return self._free.pop()

    def share(self, address: int) -> int:
        self._users[address] = self._users.get(address, 1) + 1
        return address

    def give_back(self, addresses: list[int]) -> None:
        for address in addresses:
            users = self._users.pop(address, 1) - 1
            if users == 0:
                self._free.append(address)
            elif users > 1:
                self._users[address] = users

    def page(self, address: int) -> Tensor:
        """Return its numbers, (layers, 2, kv_heads, PAGE, size)."""
        return self._pages[address]

    def copy(self, address: int) -> int:
        """Return a page with the same content."""
        new = self.take()
        self._pages[new].copy_(self._pages[address])
        return new

    def clear(self) -> None:
        """Free all memory; pages in use are lost."""
        self._pages, self._free, self._users = {}, [], {}

    @property
    def used(self) -> int:
        return len(self._pages) - len(self._free)

    def _grow(self) -> None:
        numbers = self.shape[0] * self.layer_size
        count = max(1, min(SLAB_PAGES, SLAB_BYTES // (numbers * self._dtype.itemsize)))
        slab = torch.empty((count, *self.shape), dtype=self._dtype, device=self._device)
        pages = {page.data_ptr(): page for page in slab}
        self._pages.update(pages)
        self._free.extend(reversed(pages))
