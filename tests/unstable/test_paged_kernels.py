"""The kernels of a GPU give what their reference in plain torch gives.

They also run without a GPU where Triton is installed and TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import os

import plain_kernels
import pytest
import torch
from torch import Tensor

from unstable.engines.pages import PAGE, PagePool

pytest.importorskip("triton", reason="kernels are written in Triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels run on a GPU", allow_module_level=True)

from unstable.engines import kernels  # noqa: E402 - it needs what was looked for above

SHAPES = [(4, 2, 8, torch.float32), (6, 2, 24, torch.float32), (16, 8, 128, torch.bfloat16)]
"""Heads of queries, of keys, their size, and the type."""


def close(ours: Tensor, theirs: Tensor) -> None:
    within = 1e-4 if ours.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(ours.float(), theirs.float(), atol=within, rtol=within)


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [48, 2048])
def test_norm_kernel_matches_torch(size: int, dtype: torch.dtype):
    hidden, weight = numbers(5, size, dtype=dtype), numbers(size, dtype=dtype, seed=1)
    delta = numbers(5, size + 16, dtype=dtype, seed=2)[:, :size]
    ours, theirs = hidden.clone(), hidden.clone()
    close(
        kernels.add_norm(ours, None, weight, 1e-6),
        plain_kernels.add_norm(theirs, None, weight, 1e-6),
    )
    close(
        kernels.add_norm(ours, delta, weight, 1e-6),
        plain_kernels.add_norm(theirs, delta, weight, 1e-6),
    )
    close(ours, theirs)


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(("q_heads", "kv_heads", "size", "dtype"), SHAPES)
def test_pages_are_written_and_attended_to(
    q_heads: int, kv_heads: int, size: int, dtype: torch.dtype, normed: bool
):
    heads = (q_heads, kv_heads, size)
    pools = [PagePool(2, kv_heads, size, dtype, DEVICE) for _ in range(2)]
    lengths = [3, PAGE, 2 * PAGE + 5, 1]
    filling = numbers(*pools[0].shape, dtype=dtype, seed=7)
    tables = []
    for pool in pools:
        pages = [[pool.take() for _ in range(3)] for _ in lengths]
        for row in pages:
            for page in row:
                pool.page(page).copy_(filling)
        tables.append(torch.tensor(pages, device=DEVICE))
    total = sum(lengths)
    qkv = numbers(total + 1, (q_heads + 2 * kv_heads) * size + 32, dtype=dtype)
    positions = torch.tensor([p for n in lengths for p in range(n)] + [-1], dtype=torch.int32)
    rows = torch.tensor([r for r, n in enumerate(lengths) for _ in range(n)] + [0])
    angles = torch.rand(4 * PAGE, size, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    rotary = (angles.cos().to(dtype), angles.sin().to(dtype))
    weights = numbers(2, size, dtype=dtype, seed=4)
    norms = (weights[0], weights[1], 1e-6) if normed else None
    outcomes = []
    for ops, pool, table in zip((kernels, plain_kernels), pools, tables, strict=True):
        queries, keys = ops.rotate_and_store(
            qkv, heads, norms, rotary, positions.to(DEVICE), rows.to(DEVICE, torch.int32), table,
            pool, 1, True,
        )  # fmt: skip
        ends = torch.tensor([*(n - 1 for n in lengths), -1], dtype=torch.int32, device=DEVICE)
        last = torch.tensor(lengths).cumsum(0).to(DEVICE) - 1
        asked = torch.cat([queries[last], queries[:1]])
        with_idle = torch.cat([table, table[:1]])
        mixed = ops.attend(asked, kv_heads, ends, with_idle, pool, 1, size**-0.5)
        outcomes.append((queries[:-1], keys[:-1], mixed[:-1]))
    for ours, theirs in zip(*outcomes, strict=True):
        close(ours, theirs)
    for ours, theirs in zip(*(table.flatten().tolist() for table in tables), strict=True):
        close(pools[0].page(ours), pools[1].page(theirs))


def test_attention_leaves_out_what_was_never_written():
    pool = PagePool(1, 2, 16, torch.float32, DEVICE)
    page = pool.take()
    pool.page(page).fill_(float("nan"))
    pool.page(page)[..., :3, :] = 1.0
    table = torch.tensor([[page, 0]], device=DEVICE)
    positions = torch.tensor([2], dtype=torch.int32, device=DEVICE)
    queries = numbers(1, 4, 16, dtype=torch.float32)
    mixed = kernels.attend(queries, 2, positions, table, pool, 0, 0.25)
    close(mixed, torch.ones_like(mixed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("sizes", "rank", "slots"), [((32, 16, 16), 16, 2), ((258,), 16, 2), ((64, 64, 64), 32, 4)]
)
def test_adapter_kernel_matches_torch(
    sizes: tuple[int, ...], rank: int, slots: int, dtype: torch.dtype
):
    ranks = rank * slots
    out = numbers(21, sum(sizes) + len(sizes) * ranks, dtype=dtype)
    up = numbers(ranks, sum(sizes), dtype=dtype, seed=1) / ranks**0.5
    whose = (torch.arange(21, device=DEVICE) % (slots + 1) - 1).int()
    ours, theirs = out.clone(), out.clone()
    kernels.expand(ours, up, whose, sizes, rank)
    plain_kernels.expand(theirs, up, whose, sizes, rank)
    close(ours, theirs)
    assert torch.equal(ours[:, sum(sizes) :], out[:, sum(sizes) :])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("size", "ranks"), [(48, 0), (48, 32), (1100, 0), (192, 128)])
def test_gate_kernel_matches_torch(size: int, ranks: int, dtype: torch.dtype):
    both = numbers(21, 2 * size + 2 * ranks, dtype=dtype)
    up = numbers(ranks, 2 * size, dtype=dtype, seed=1) / 8 if ranks else None
    whose = (torch.arange(21, device=DEVICE) % 3 - 1).int() if ranks else None
    ours = kernels.gate(both.clone(), size, up, whose, 16)
    close(ours, plain_kernels.gate(both.clone(), size, up, whose, 16))


def asked_of(rows: list[tuple[float, float, float, int]]) -> Tensor:
    """Slots in reverse; uniform number, temperature, top_p and forced token of each."""
    asked = torch.zeros(7, len(rows), dtype=torch.int32)
    asked[0] = torch.arange(len(rows)).flip(0)
    asked[3] = torch.tensor([row[3] for row in rows])
    asked[4:] = torch.tensor([row[:3] for row in rows]).T.contiguous().view(torch.int32)
    return asked.to(DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [37, 258, 20_000])
def test_sampling_kernel_matches_torch(vocabulary: int, dtype: torch.dtype):
    ways = [(1.0, 1.0), (0.7, 0.95), (1.3, 0.5), (0.0, 1.0), (1.0, 0.01)]
    rows = [(uniform, *way, -1) for uniform in (0.0, 0.31, 0.77, 0.999) for way in ways] + [
        (0.5, 1.0, 1.0, 11)
    ]
    logits = numbers(len(rows), vocabulary + 16, dtype=dtype) * 3
    asked = asked_of(rows)
    places = [torch.zeros(len(rows), dtype=torch.long, device=DEVICE) for _ in range(2)]
    ours = kernels.draw_tokens(logits, vocabulary, asked, places[0])
    theirs = plain_kernels.draw_tokens(logits, vocabulary, asked, places[1])
    same = ours[0] == theirs[0]  # a uniform number may fall between two tokens' rounded bounds
    assert same.float().mean() >= 0.95
    assert torch.equal(places[0].flip(0).int(), ours[0])
    divisors = torch.tensor([row[1] or 1.0 for row in rows], device=DEVICE)[:, None]
    logprobs = (logits[:, :vocabulary].float() / divisors).log_softmax(-1)
    logprobs = logprobs.gather(1, ours[:1].T.long())[:, 0]
    torch.testing.assert_close(ours[1].view(torch.float32), logprobs, atol=1e-4, rtol=1e-5)


def test_frequencies_are_those_of_the_nucleus():
    count = 500
    probs = torch.tensor([0.125, 0.5, 0.125, 0.25], device=DEVICE)
    rows = [((n + 0.5) / count, 1.0, (1.0, 0.6)[n % 2], -1) for n in range(count)]
    logits = probs.log().expand(count, 4)
    places = torch.zeros(count, dtype=torch.long, device=DEVICE)
    tokens = kernels.draw_tokens(logits, 4, asked_of(rows), places)[0]
    for start, kept in ((0, probs), (1, torch.where(probs >= 0.25, probs, 0.0))):
        shares = torch.bincount(tokens[start::2], minlength=4) / (count / 2)
        torch.testing.assert_close(shares, kept / kept.sum(), atol=1e-2, rtol=0)


def test_invalid_logits_give_invalid_log_probability():
    logits = torch.tensor([[0.0, float("nan")], [float("inf"), 0.0], [-float("inf"), 0.0]])
    places = torch.zeros(3, dtype=torch.long, device=DEVICE)
    results = kernels.draw_tokens(logits.to(DEVICE), 2, asked_of([(0.3, 1.0, 1.0, -1)] * 3), places)
    assert results[0, 2] == 1
    assert results[1].view(torch.float32).isfinite().tolist() == [False, False, True]
