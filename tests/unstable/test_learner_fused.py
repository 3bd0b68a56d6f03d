"""Layers as one operation say what PEFT and transformers say, and learn the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from learner_parts import assert_close, make_steps
from peft import LoraConfig, get_peft_model
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from unstable.algorithms import A2C, PPO, Reinforce
from unstable.algorithms.forward import (
    compute_hidden_states,
    find_trunk,
    pack,
    use_packed_attention,
)
from unstable.learners.fused import fuse, fuse_blocks
from unstable.learners.policy import enable_full_activation_ckpt, load_policy

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "initializer_range": 0.2,
    "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
}  # fmt: skip
KINDS = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, 14 + 9),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, 14 + 5),  # its layers have a bias
    "llama": (LlamaConfig, LlamaForCausalLM, 14 + 5),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM, 14),  # its norms weigh by 1 + w: left alone
}
TOKENS = torch.arange(2, 44).view(3, 14)


def adapted(kind: str = "qwen3", **changes: Any) -> Any:
    """A model as PEFT makes it, with an adapter that matters and norms that are not 1."""
    config, causal, _ = KINDS[kind]
    torch.manual_seed(0)
    model = causal(config(**SIZES))
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    lora = {"r": 4, "lora_alpha": 6, "target_modules": "all-linear"} | changes
    return with_weights(get_peft_model(model, LoraConfig(**lora)))


def with_weights(model: Any) -> Any:
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at first: nothing of A would be seen
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def answer_and_gradients(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    logits = model(input_ids=TOKENS).logits
    if logits.requires_grad:
        (logits.log_softmax(-1) * torch.linspace(-1, 1, 64)).sum(-1).mean().backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), grads


def assert_same(one: Any, other: Any) -> None:
    (logits, gradients), (expected, wanted) = answer_and_gradients(one), answer_and_gradients(other)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert_close(gradients, wanted, atol=1e-5, rtol=1e-4)


def operations(model: Any) -> int:
    """How many there are in the graph of an answer."""
    found, new = set(), [model(input_ids=TOKENS).logits.grad_fn]
    while new:
        one = new.pop()
        if one is not None and one not in found:
            found.add(one)
            new += [before for before, _ in one.next_functions]
    return len(found)


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_those_of_peft(kind):
    theirs = adapted(kind)
    ours = copy.deepcopy(theirs)
    assert fuse(ours) == KINDS[kind][2]
    assert operations(ours) < 0.75 * operations(theirs)
    assert_same(ours, theirs)


def test_the_base_without_its_adapter_is_the_base():
    model = adapted()
    with torch.no_grad(), model.disable_adapter():
        expected = model(input_ids=TOKENS).logits
    fuse(model)
    with torch.no_grad(), model.disable_adapter():
        torch.testing.assert_close(model(input_ids=TOKENS).logits, expected)
    assert not torch.allclose(model(input_ids=TOKENS).logits, expected, atol=1e-3)


def two_adapters(model: Any) -> None:
    model.add_adapter("second", LoraConfig(r=2, target_modules="all-linear"))
    with_weights(model)
    model.base_model.set_adapter(["default", "second"])


def narrow(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if "lora" not in name:
            parameter.data = parameter.data.bfloat16()


UNUSUAL = {
    "dropout": ({"lora_dropout": 0.4}, lambda model: model.train()),
    "dora": ({"use_dora": True}, lambda model: None),
    "bias of the adapter": ({"lora_bias": True}, lambda model: None),
    "two adapters": ({}, two_adapters),
    "merged": ({}, lambda model: model.merge_adapter()),
    "trained base": ({}, lambda model: model.requires_grad_(True)),
    "bfloat16 base": ({}, narrow),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_unusual_layers_use_the_library(case):
    """Dropout draws the same numbers, so even it can be compared."""
    changes, prepare = UNUSUAL[case]
    found = []
    for fused in (False, True):
        model = adapted(**changes)
        torch.manual_seed(1)
        prepare(model)
        if fused:
            fuse(model)
        torch.manual_seed(2)
        found.append(answer_and_gradients(model))
    (expected, wanted), (logits, gradients) = found
    close = {"atol": 0.1, "rtol": 0.1} if case == "bfloat16 base" else {"atol": 1e-5, "rtol": 1e-4}
    torch.testing.assert_close(logits, expected, **close)
    if case != "bfloat16 base":
        assert_close(gradients, wanted, **close)


@pytest.mark.parametrize("kind", ["qwen3", "qwen2"])
def test_copied_model_uses_its_own_weights(kind):
    model = adapted(kind)
    fuse(model)
    expected = model(input_ids=TOKENS).logits.detach()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    torch.testing.assert_close(other(input_ids=TOKENS).logits, expected)


# --- the last layer only where it is asked for ----------------------------------------------


def policy(folder: str, **options: Any) -> tuple[Any, Any]:
    torch.manual_seed(3)
    lora = {} if options else {"lora_rank": 4, "target_modules": "all-linear"}
    model, tokenizer = load_policy(folder, torch.device("cpu"), torch.float32, lora, **options)
    return with_weights(model), tokenizer


@pytest.mark.parametrize("memory", ["plenty", "gradient checkpointing", "both"])
def test_asked_places_equal_the_full_pass(folder, memory):
    row = pack([[5, 6, 7, 8], [9, 10, 11, 12], [3, 4, 5, 6, 7, 8, 9]])
    asked = torch.tensor([2, 3, 7, 12, 13])
    found = []
    for places in (None, asked):
        model, _ = policy(folder)
        model.train()
        if memory == "both":
            enable_full_activation_ckpt(model)
        if memory != "plenty":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        hidden = compute_hidden_states(find_trunk(model), row, asked=places)[asked]
        # The sum of squares of what is normalised is the same whatever the weights are.
        (hidden * torch.linspace(-1.0, 1.0, hidden.shape[-1])).sum().backward()
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        found.append((hidden.detach(), grads))
    (expected, wanted), (states, gradients) = found
    torch.testing.assert_close(states, expected)
    assert max(gradient.abs().max() for gradient in wanted.values()) > 0.01
    assert_close(gradients, wanted, atol=1e-5, rtol=1e-4)


def test_last_mlp_sees_only_asked_places(folder):
    model, _ = policy(folder)
    seen = []
    mlps = [layer.mlp for layer in find_trunk(model).layers]
    for mlp in mlps:
        mlp.down_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[-2]))
    row = pack([[5, 6, 7, 8, 9, 10]])
    compute_hidden_states(find_trunk(model), row, asked=torch.tensor([4, 5]))
    compute_hidden_states(find_trunk(model), row)
    model(input_ids=torch.tensor([[5, 6, 7]]))
    assert seen == [6, 2, 6, 6, 3, 3]


@pytest.mark.parametrize("algorithm", [Reinforce(), A2C()], ids=["reinforce", "a2c"])
def test_update_asks_for_all_places_it_uses(folder, algorithm):
    """The same numbers come from a model that computes every place."""
    found = []
    for everywhere in (False, True):
        model, tokenizer = policy(folder)
        if everywhere:
            for hooks in (find_trunk(model).layers[-1].mlp._forward_pre_hooks,
                          find_trunk(model).layers[-1].mlp._forward_hooks):  # fmt: skip
                hooks.clear()
        algorithm.initialize(model, tokenizer, "cpu", 16)
        numbers = algorithm.update(make_steps(12))
        found.append(
            (numbers, [p.grad.norm().item() for p in model.parameters() if p.requires_grad])
        )
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-6)
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-4, abs=1e-7)


def test_checkpointing_keeps_the_reference_unchanged(folder):
    model, tokenizer = policy(folder, full_parameters=True)
    enable_full_activation_ckpt(model)
    algorithm = PPO(kl_coef=0.5)
    algorithm.initialize(model, tokenizer, "cpu", 16)
    steps = make_steps(8)
    before = algorithm.logprobs(algorithm.prepare_steps(steps))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.2)
    samples = algorithm.prepare_steps(steps)
    flat = [value for sample in samples for value in sample.reference_logprobs]
    assert flat == pytest.approx([value for values in before for value in values], abs=1e-5)


# --- blocks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]], ids=["all", "some"])
def test_fused_blocks_match_library_values_and_gradients(kind, targets):
    row = pack([[5, 6, 7, 8], [9, 10, 11, 12], [3, 4, 5, 6, 7, 8, 9]])
    found = []
    for fused in (False, True):
        model = adapted(kind, target_modules=targets)
        use_packed_attention(model)
        if fused:
            fuse(model)
            assert fuse_blocks(find_trunk(model)) == 4
        states = compute_hidden_states(find_trunk(model), row)
        states.pow(3).sum().backward()
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        found.append((states.detach(), grads))
    (expected, wanted), (states, gradients) = found
    torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)
    assert_close(gradients, wanted, atol=1e-4, rtol=1e-3)


def test_unknown_blocks_are_not_fused():
    model = adapted("gemma2")
    use_packed_attention(model)
    assert fuse_blocks(find_trunk(model)) == 0


def test_updated_adapter_is_used_at_once():
    model = adapted()
    fuse(model)
    before = model(input_ids=TOKENS).logits.detach()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(input_ids=TOKENS).logits.square().mean().backward()
    optimizer.step()
    after = model(input_ids=TOKENS).logits.detach()
    assert not torch.allclose(after, before, atol=1e-3)
    plain = adapted()
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(after, plain(input_ids=TOKENS).logits.detach())
