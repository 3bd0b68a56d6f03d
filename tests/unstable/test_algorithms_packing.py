"""Packed and in chunks is the same as one sequence at a time."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from learner_parts import assert_close, make_model, make_steps

from unstable.algorithms import PPO, Reinforce
from unstable.algorithms import policy_gradient as shared
from unstable.algorithms.forward import (
    compute_hidden_states,
    pack,
    token_logprobs,
    trunk_and_head,
    use_packed_attention,
)
from unstable.core import Step
from unstable.learners.policy import enable_full_activation_ckpt, load_policy

LORA = {"lora_rank": 4, "target_modules": "all-linear"}


def policy(folder: str) -> tuple[Any, Any]:
    torch.manual_seed(3)
    model, tokenizer = load_policy(folder, torch.device("cpu"), torch.float32, LORA)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at first: nothing of A would be seen
            torch.nn.init.normal_(parameter, std=0.1)
    return model, tokenizer


def reference_loss(model: Any, steps: list[Step], *, clip: float | None, divisor: int) -> Any:
    """The document's loss as one would write it down: a sequence at a time, all logits."""
    total = torch.zeros(())
    for step in steps:
        tokens = torch.tensor([[*step.prompt_ids, *step.completion_ids]])
        logits = model(input_ids=tokens).logits[0, :-1]
        logp = torch.log_softmax(logits, -1).gather(-1, tokens[0, 1:, None])[:, 0]
        logp = logp[len(step.prompt_ids) - 1 :]
        if clip is None:
            total = total - step.reward * logp.sum() / divisor
        else:
            ratio = (logp - torch.tensor(step.logprobs)).exp()
            free, bound = ratio * step.reward, ratio.clamp(1 - clip, 1 + clip) * step.reward
            total = total - torch.minimum(free, bound).sum() / divisor
    return total / len(steps)


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("clip", [None, 0.2])
def test_loss_and_gradients_equal_one_sequence_at_a_time(folder, clip, monkeypatch):
    monkeypatch.setattr(shared, "token_logprobs", in_small_chunks)
    model, tokenizer = policy(folder)
    steps = make_steps(24)
    steps += copy.deepcopy(steps[:5])  # twice, with another reward
    for step in steps[-5:]:
        step.reward = 0.3
    expected = reference_loss(model, steps, clip=clip, divisor=16)
    expected.backward()
    wanted = gradients(model)
    model.zero_grad()

    algorithm = Reinforce(importance_cap=None) if clip is None else PPO(clip)
    algorithm.initialize(model, tokenizer, "cpu", max_generation_len=16)
    samples = algorithm.prepare_steps(steps)
    parts = algorithm.split(samples, 1, 64)
    assert len(parts) > 3
    loss = 0.0
    for part in parts:
        numbers = algorithm.update(part, len(samples) / len(part))
        loss += numbers["loss"] * len(part) / len(samples)
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    assert_close(gradients(model), wanted, atol=1e-5, rtol=1e-4)


def in_small_chunks(*args: Any, **kwargs: Any) -> Any:
    return token_logprobs(*args, **kwargs, logits_at_once=257 * 7)


def test_packed_sequences_do_not_see_each_other(folder):
    model, _ = policy(folder)
    trunk, _ = trunk_and_head(model)
    one, other, third = [5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15]
    alone = compute_hidden_states(trunk, pack([other]))
    for before, after in ((one, third), (third, one), ([1] * 9, [2])):
        row = pack([before, other, after])
        found = compute_hidden_states(trunk, row)[row.starts[1] : row.starts[2]]
        torch.testing.assert_close(found, alone, atol=1e-6, rtol=1e-5)
        # and no gradient goes over either
        found.sum().backward()
        shared_by_both = gradients(model)
        model.zero_grad()
        compute_hidden_states(trunk, pack([other])).sum().backward()
        assert_close(shared_by_both, gradients(model), atol=1e-5, rtol=1e-4)
        model.zero_grad()


def test_packed_attention_keeps_the_sliding_window(tmp_path):
    folder = make_model(
        tmp_path, use_sliding_window=True, sliding_window=3, max_window_layers=0, layers=2
    )
    from transformers import AutoModelForCausalLM

    usual: Any = AutoModelForCausalLM.from_pretrained(folder)
    assert "sliding_attention" in usual.config.layer_types
    tokens = list(range(3, 13))
    expected = usual.model(input_ids=torch.tensor([tokens])).last_hidden_state[0]
    use_packed_attention(usual)
    found = compute_hidden_states(usual.model, pack([tokens, [1, 2]]))[: len(tokens)]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_model_without_layout_is_unchanged(folder):
    from transformers import AutoModelForCausalLM

    usual: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokens = torch.tensor([[0, 0, 7, 8], [1, 2, 3, 4]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    expected = usual(input_ids=tokens, attention_mask=mask).logits
    use_packed_attention(usual)
    torch.testing.assert_close(usual(input_ids=tokens, attention_mask=mask).logits, expected)


def test_chunks_give_the_same_values_entropies_and_gradients():
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 50)
    hidden = torch.randn(33, 8, requires_grad=True)
    targets = torch.randint(0, 50, (33,))
    found = []
    for at_once in (50 * 4, 10**6):
        logp, entropy = token_logprobs(hidden, head, targets, entropy=True, logits_at_once=at_once)
        assert entropy is not None
        (logp.sum() + entropy.square().sum()).backward()
        assert hidden.grad is not None
        assert head.weight.grad is not None
        found.append((logp, entropy, hidden.grad.clone(), head.weight.grad.clone()))
        hidden.grad = head.weight.grad = None
    for small, whole in zip(*found, strict=True):
        torch.testing.assert_close(small, whole, atol=1e-5, rtol=1e-5)
    expected = torch.distributions.Categorical(logits=head(hidden)).entropy()
    torch.testing.assert_close(found[0][1], expected)


def test_no_chunk_has_more_logits_than_allowed():
    sizes = []

    def head(hidden: torch.Tensor) -> torch.Tensor:
        sizes.append(hidden.shape[0] * 50)
        return hidden @ torch.ones(8, 50)

    token_logprobs(torch.randn(33, 8), head, torch.zeros(33, dtype=torch.long), logits_at_once=400)
    assert max(sizes) <= 400


def saved_bytes(model: Any, algorithm: Any, steps: list[Step]) -> int:
    sizes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        sizes[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        algorithm.update(steps)
    return sum(sizes.values())


@pytest.mark.parametrize("both", [False, True])
def test_checkpointing_changes_memory_and_no_gradient(folder, both):
    steps = make_steps(12)
    found = []
    for enabled in (False, True):
        model, tokenizer = policy(folder)
        model.train()
        if enabled:
            enable_full_activation_ckpt(model)
            if both:
                model.gradient_checkpointing_enable({"use_reentrant": False})
        algorithm = Reinforce()
        algorithm.initialize(model, tokenizer, "cpu", 16)
        found.append((saved_bytes(model, algorithm, steps), gradients(model)))
    (usual, expected), (little, same) = found
    assert little < 0.7 * usual
    assert_close(same, expected)


def test_model_with_fixed_attention_is_refused():
    class Config:
        _attn_implementation = "own"

    class Stubborn:
        config = Config()

        def set_attn_implementation(self, name: str) -> None:
            """As transformers does: a warning, and nothing changes."""

    with pytest.raises(ValueError, match="Stubborn does not let its attention be chosen"):
        use_packed_attention(Stubborn())


def test_equal_sequences_are_computed_once(folder):
    model, tokenizer = policy(folder)
    steps = make_steps(3)
    algorithm = Reinforce()
    algorithm.initialize(model, tokenizer, "cpu", 16)
    batch = algorithm.prepare_batch([*steps, *steps, *steps])
    assert batch.row is not None
    tokens = sum(len(s.prompt_ids) + len(s.completion_ids) for s in steps)
    assert batch.row.input_ids.shape == (1, tokens)
    assert len(batch.which) == 3 * sum(len(step.completion_ids) for step in steps)
