"""Drawing by inverting the cumulative distribution."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unstable.engines.decoder import draw

HALVES = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
"""Four tokens, by their probabilities."""


def draw_rows(
    logits: torch.Tensor, rows: list[tuple[float, float, float]], forced: int = -1
) -> tuple[torch.Tensor, torch.Tensor]:
    uniform, temperature, top_p = torch.tensor(rows, dtype=torch.float64).float().T
    return draw(logits, uniform, temperature, top_p, torch.full((len(rows),), forced))


@pytest.mark.parametrize(
    ("uniform", "temperature", "top_p", "token"),
    [
        (0.0, 1.0, 1.0, 0), (0.49, 1.0, 1.0, 0), (0.51, 1.0, 1.0, 1), (0.76, 1.0, 1.0, 2),
        (0.999, 1.0, 1.0, 3),
        (0.99, 0.0, 1.0, 0), (0.99, 0.0, 0.1, 0),  # the most likely one, whatever is drawn
        (0.99, 1.0, 0.5, 0), (0.99, 1.0, 0.01, 0),  # the first is always kept
        (0.66, 1.0, 0.6, 0), (0.68, 1.0, 0.6, 1),  # 2/3 and 1/3 are left
        (0.99, 1.0, 0.75, 1), (0.99, 1.0, 0.8, 3),  # equally likely ones stay together
        (0.74, 0.5, 1.0, 1), (0.72, 0.5, 1.0, 0),  # squares: 8/11, 2/11, 1/22, 1/22
    ],
)  # fmt: skip
def test_a_number_picks_its_token(uniform: float, temperature: float, top_p: float, token: int):
    tokens, logprobs = draw_rows(HALVES, [(uniform, temperature, top_p)])
    assert tokens.tolist() == [token]
    powers = [share ** (1 / (temperature or 1.0)) for share in (0.5, 0.25, 0.125, 0.125)]
    assert logprobs.tolist() == pytest.approx([math.log(powers[token] / sum(powers))])


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 1.0, exclude_max=True),
            st.sampled_from([0.0, 0.3, 1.0, 2.0]),
            st.sampled_from([0.1, 0.9, 1.0]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_a_row_does_not_depend_on_the_others(rows: list[tuple[float, float, float]]):
    logits = torch.randn(len(rows), 37, generator=torch.Generator().manual_seed(len(rows)))
    tokens, logprobs = draw_rows(logits, rows)
    for number, row in enumerate(rows):
        alone = draw_rows(logits[number : number + 1], [row])
        assert tokens[number] == alone[0][0]
        assert logprobs[number] == pytest.approx(alone[1][0].item(), abs=1e-6)


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_frequencies_are_the_probabilities(top_p: float):
    count = 20_000
    rows = [((number + 0.5) / count, 1.0, top_p) for number in range(count)]
    tokens, _ = draw_rows(HALVES.expand(count, 4), rows)
    shares = torch.bincount(tokens, minlength=4) / count
    kept = torch.tensor([0.5, 0.25, *([0.125, 0.125] if top_p == 1.0 else [0.0, 0.0])])
    assert shares.tolist() == pytest.approx((kept / kept.sum()).tolist(), abs=1e-3)


def test_a_number_that_is_rounded_up_to_one_draws_the_last_token_that_is_kept():
    tokens, logprobs = draw_rows(HALVES, [(1.0, 1.0, 1.0), (1.0, 1.0, 0.75)])
    assert tokens.tolist() == [3, 1]
    assert logprobs.isfinite().all()


def test_a_forced_token_is_given_its_log_probability():
    tokens, logprobs = draw_rows(HALVES, [(0.0, 1.0, 1.0)], forced=2)
    assert tokens.tolist() == [2]
    assert logprobs.tolist() == pytest.approx([math.log(0.125)])


def test_what_is_no_distribution_is_seen_in_the_log_probability():
    logits = torch.tensor([[0.0, math.nan], [math.inf, 0.0], [-math.inf, 0.0]])
    tokens, logprobs = draw_rows(logits, [(0.3, 1.0, 1.0)] * 3)
    assert tokens[2] == 1
    assert logprobs.isfinite().tolist() == [False, False, True]
