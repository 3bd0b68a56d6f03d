"""The learner's kernels give what plain torch gives, and its gradients.

They also run without a GPU where Triton is installed and TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

pytest.importorskip("triton", reason="kernels are written in Triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels run on a GPU", allow_module_level=True)

from unstable.algorithms import forward  # noqa: E402 - it needs what was looked for above
from unstable.learners import kernels  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16]


def close(ours: Tensor, theirs: Tensor) -> None:
    within = 1e-4 if ours.dtype == torch.float32 else 3e-2
    torch.testing.assert_close(ours.float(), theirs.float(), atol=within, rtol=within)


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def gradients(function: Any, inputs: tuple[Tensor, ...], slope: Tensor) -> tuple[Tensor, ...]:
    """The value and gradients in float32."""
    wide = [x.float().requires_grad_() for x in inputs]
    out = function(*wide)
    return (out.detach(), *torch.autograd.grad(out, wide, slope.float()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gate_kernel_matches_torch(dtype: torch.dtype):
    g, u, slope = (numbers(7, 300, dtype=dtype, seed=seed) for seed in range(3))
    out, to_g, to_u = gradients(lambda a, b: functional.silu(a) * b, (g, u), slope)
    close(kernels.gate(g, u), out.to(dtype))
    for ours, theirs in zip(kernels.gate_backward(slope, g, u), (to_g, to_u), strict=True):
        close(ours, theirs.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [48, 2048])
def test_norm_kernel_matches_torch(size: int, dtype: torch.dtype):
    x, slope = numbers(5, size, dtype=dtype), numbers(5, size, dtype=dtype, seed=1)
    weight = numbers(size, dtype=dtype, seed=2)
    out, to_x = gradients(
        lambda a: functional.rms_norm(a, (size,), weight.float(), 1e-6), (x,), slope
    )
    close(kernels.norm(x, weight, 1e-6), out.to(dtype))
    close(kernels.norm_backward(slope, x, weight, 1e-6), to_x.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "size"), [(3, 8), (16, 128), (2, 24)])
@pytest.mark.parametrize("normed", [True, False])
def test_rotation_kernel_matches_torch(heads: int, size: int, dtype: torch.dtype, normed: bool):
    x, slope = (numbers(1, 6, heads, size, dtype=dtype, seed=seed) for seed in range(2))
    weight = numbers(size, dtype=dtype, seed=2) if normed else None
    cosines, sines = (numbers(1, 6, size, dtype=dtype, seed=seed) for seed in (3, 4))

    def plain(a: Tensor) -> Tensor:
        if weight is not None:
            a = functional.rms_norm(a, (size,), weight.float(), 1e-6)
        first, second = a.chunk(2, -1)
        turned = torch.cat((-second, first), -1)
        return a * cosines.float()[:, :, None] + turned * sines.float()[:, :, None]

    out, to_x = gradients(plain, (x,), slope)
    close(kernels.rotate(x, weight, 1e-6, cosines, sines), out.to(dtype))
    close(kernels.rotate_backward(slope, x, weight, 1e-6, cosines, sines), to_x.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [5, 128, 9000])
def test_logits_become_probabilities_in_place(size: int, dtype: torch.dtype):
    logits = 4 * numbers(3, size, dtype=dtype)
    targets = torch.tensor([0, size // 2, size - 1], device=DEVICE)
    temperatures = torch.tensor([1.0, 0.7, 1.3], device=DEVICE)
    wanted = torch.log_softmax(logits.float() / temperatures[:, None], -1)
    logps, totals = kernels.softmax_(logits, targets, temperatures)
    torch.testing.assert_close(logps, wanted.gather(-1, targets[:, None])[:, 0])
    within = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(
        logits.float() / totals[:, None], wanted.exp(), rtol=within, atol=1e-6
    )


def test_frozen_head_kernel_matches_torch(
    monkeypatch: pytest.MonkeyPatch,
):
    head = torch.nn.Linear(16, 700, bias=False, device=DEVICE).requires_grad_(False)
    states = numbers(9, 16, dtype=torch.float32)
    targets = torch.arange(0, 630, 70, device=DEVICE)
    temperatures = torch.linspace(0.5, 1.5, 9, device=DEVICE)
    results = []
    for chosen in (kernels, None):
        monkeypatch.setattr(forward, "kernels_for", lambda _, chosen=chosen: chosen)
        hidden = states.clone().requires_grad_()
        logp, _ = forward.token_logprobs(
            hidden, head, targets, temperatures, logits_at_once=2 * 700
        )
        results.append((logp, *torch.autograd.grad(logp.square().sum(), hidden)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
