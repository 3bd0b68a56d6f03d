"""Steps as tokens: exactly those that were sampled."""

from __future__ import annotations

from typing import Any

import pytest
from learner_parts import ENV, make_steps

from unstable.algorithms.policy_gradient import mini_batches, to_sample
from unstable.core import Step


@pytest.fixture(scope="module")
def tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def step(**values: Any) -> Step:
    return Step(**{"pid": 0, "obs": "xa", "act": "by", "reward": 1.0, "env_id": ENV, **values})


def test_sampled_tokens_are_trained_as_they_are_with_the_one_that_stops(tokenizer):
    sample = to_sample(
        step(prompt_ids=[5, 6], completion_ids=[7, 0], logprobs=[-1.0, -2.0]), tokenizer
    )
    assert sample.tokens == (5, 6, 7, 0)
    assert sample.prompt_length == 2
    assert sample.trained == 2
    assert sample.old_logprobs == (-1.0, -2.0)
    assert not sample.truncated


def test_text_is_tokenised_prompt_and_answer_each_alone_and_ended(tokenizer):
    joined = tokenizer.encode("xaby", add_special_tokens=False)
    sample = to_sample(step(), tokenizer)
    assert len(joined) == 3  # "ab" is one token: the border would be inside it
    assert len(sample.tokens) == 5
    assert sample.prompt_length == 2
    assert tokenizer.decode(sample.tokens[2:4]) == "by"
    assert sample.tokens[-1] == tokenizer.eos_token_id
    assert sample.old_logprobs == ()


def test_an_empty_answer_is_to_stop_at_once(tokenizer):
    sample = to_sample(step(act=""), tokenizer)
    assert sample.trained == 1
    assert sample.tokens[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize(("length", "trained"), [(3, 1), (4, 2), (2, 0), (1, 0), (None, 2)])
def test_only_the_first_tokens_are_trained(tokenizer, length, trained):
    sample = to_sample(
        step(prompt_ids=[5, 6], completion_ids=[7, 0], logprobs=[-1.0, -2.0]), tokenizer, length
    )
    assert sample.trained == trained
    assert len(sample.old_logprobs) == trained
    assert sample.truncated == (length is not None and length < 4)


def test_without_a_prompt_the_first_token_is_given(tokenizer):
    sample = to_sample(
        step(prompt_ids=[], completion_ids=[7, 8, 0], logprobs=[-1.0, -2.0, -3.0]), tokenizer
    )
    assert sample.tokens == (7, 8, 0)
    assert sample.trained == 2
    assert sample.old_logprobs == (-2.0, -3.0)


def test_mini_batches_lose_nothing_and_keep_their_bounds(tokenizer):
    samples = [to_sample(one, tokenizer) for one in make_steps(50)]
    for at_least, room in ((1, 40), (7, None), (3, 30), (1, 1)):
        parts = mini_batches(samples, at_least, room)
        assert sorted(map(id, samples)) == sorted(id(s) for part in parts for s in part)
        assert all(len(part) >= at_least for part in parts[:-1])
        for part in parts:
            assert len(part) <= at_least or sum(len(s.tokens) for s in part) <= (room or 0)
    assert len(mini_batches(samples, 1, None)) == 50


def test_equal_sequences_take_room_once(tokenizer):
    samples = [to_sample(step(), tokenizer) for _ in range(20)]
    assert len(mini_batches(samples, 1, 5)) == 1
