"""Steps as tokens, and the algorithms on a small model."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from learner_parts import ENV, make_steps

from unstable import algorithms
from unstable.algorithms import A2C, GRPO, PPO, RLOO, DrGRPO, Reinforce
from unstable.algorithms.policy_gradient import Sample, split_mini_batches, to_sample
from unstable.core import Step
from unstable.learners.policy import load_policy


@pytest.fixture(scope="module")
def tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def step(**values: Any) -> Step:
    return Step(**{"pid": 0, "obs": "xa", "act": "by", "reward": 1.0, "env_id": ENV, **values})


def test_sample_keeps_sampled_tokens_and_stop_token(tokenizer):
    sample = to_sample(
        step(prompt_ids=[5, 6], completion_ids=[7, 0], logprobs=[-1.0, -2.0]), tokenizer
    )
    assert sample.tokens == (5, 6, 7, 0)
    assert sample.prompt_length == 2
    assert sample.trained == 2
    assert sample.old_logprobs == (-1.0, -2.0)
    assert not sample.truncated


def test_sample_tokenises_prompt_and_answer_apart(tokenizer):
    joined = tokenizer.encode("xaby", add_special_tokens=False)
    sample = to_sample(step(), tokenizer)
    assert len(joined) == 3  # "ab" is one token: the border would be inside it
    assert len(sample.tokens) == 5
    assert sample.prompt_length == 2
    assert tokenizer.decode(sample.tokens[2:4]) == "by"
    assert sample.tokens[-1] == tokenizer.eos_token_id
    assert sample.old_logprobs == ()


def test_empty_answer_is_the_stop_token(tokenizer):
    sample = to_sample(step(act=""), tokenizer)
    assert sample.trained == 1
    assert sample.tokens[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize(("length", "trained"), [(3, 1), (4, 2), (2, 0), (1, 0), (None, 2)])
def test_max_train_len_cuts_the_sequence(tokenizer, length, trained):
    sample = to_sample(
        step(prompt_ids=[5, 6], completion_ids=[7, 0], logprobs=[-1.0, -2.0]), tokenizer, length
    )
    assert sample.trained == trained
    assert len(sample.old_logprobs) == trained
    assert sample.truncated == (length is not None and length < 4)


def test_empty_prompt_takes_the_first_token(tokenizer):
    sample = to_sample(
        step(prompt_ids=[], completion_ids=[7, 8, 0], logprobs=[-1.0, -2.0, -3.0]), tokenizer
    )
    assert sample.tokens == (7, 8, 0)
    assert sample.trained == 2
    assert sample.old_logprobs == (-2.0, -3.0)


def test_mini_batches_keep_all_samples_and_bounds(tokenizer):
    samples = [to_sample(one, tokenizer) for one in make_steps(50)]
    for at_least, room in ((1, 40), (7, None), (3, 30), (1, 1)):
        parts = split_mini_batches(samples, at_least, room)
        assert sorted(map(id, samples)) == sorted(id(s) for part in parts for s in part)
        assert all(len(part) >= at_least for part in parts[:-1])
        for part in parts:
            assert len(part) <= at_least or sum(len(s.tokens) for s in part) <= (room or 0)
    assert len(split_mini_batches(samples, 1, None)) == 50


def test_mini_batches_count_equal_sequences_once(tokenizer):
    samples = [to_sample(step(), tokenizer) for _ in range(20)]
    assert len(split_mini_batches(samples, 1, 5)) == 1


def ready(algorithm: Any, folder: str, **options: Any) -> Any:
    torch.manual_seed(1)
    lora = {"lora_rank": 4, "target_modules": "all-linear"}
    full = options.pop("full_parameters", False)
    model, tokenizer = load_policy(
        folder, torch.device("cpu"), torch.float32, {} if full else lora, full_parameters=full
    )
    algorithm.initialize(model, tokenizer, "cpu", 16, **options)
    return algorithm


def changed(algorithm: Any) -> None:
    """Move the policy away from where it began."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in algorithm.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))


def advantages(algorithm: Any, steps: list[Step]) -> list[float]:
    return [sample.advantage for sample in algorithm.prepare_steps(steps)]


def with_rewards(steps: list[Step], rewards: list[float]) -> list[Step]:
    for step, reward in zip(steps, rewards, strict=True):
        step.reward = reward
    return steps


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_every_algorithm_gives_gradients_and_finite_numbers(folder, name):
    algorithm = ready(getattr(algorithms, name)(kl_coef=0.1, entropy_coef=0.01), folder)
    numbers = algorithm.update(make_steps(32), 2.0)
    assert all(torch.isfinite(torch.tensor(list(numbers.values()))))
    assert {"loss", "logp_mean", "logp_std", "kl", "entropy", "avg_train_len"} <= numbers.keys()
    trained = [p for p in algorithm.model.parameters() if p.requires_grad]
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in trained)


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_algorithm_can_be_pickled(name):
    there = pickle.loads(pickle.dumps(getattr(algorithms, name)(kl_coef=0.25)))  # noqa: S301
    assert there.kl_coef == 0.25


def test_advantages_are_centred_and_scaled_on_request(folder):
    steps = with_rewards(make_steps(2), [1.0, 5.0])
    assert advantages(ready(Reinforce(), folder), steps) == [1.0, 5.0]
    assert advantages(ready(Reinforce(centre=True), folder), steps) == [-2.0, 2.0]
    assert advantages(ready(PPO(centre=True, scale=True), folder), steps) == [-1.0, 1.0]


def test_ratio_is_one_at_the_sampling_weights(folder):
    algorithm = ready(Reinforce(), folder)
    changed(algorithm)
    samples = algorithm.prepare_steps(make_steps(20))
    for sample, values in zip(samples, algorithm.logprobs(samples), strict=True):
        sample.old_logprobs = values
    numbers = algorithm.update(samples)
    assert numbers["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert numbers["ratio_capped"] == 0.0


def test_ppo_computes_missing_log_probabilities(folder):
    algorithm = ready(PPO(), folder)
    steps = make_steps(6)
    for step in steps[:3]:
        step.logprobs = ()
    samples = algorithm.prepare_steps(steps)
    assert [s.old_logprobs for s in samples[3:]] == [tuple(s.logprobs) for s in steps[3:]]
    assert [s.old_logprobs for s in samples[:3]] == algorithm.logprobs(samples[:3])


@pytest.mark.parametrize("full", [False, True])
def test_the_reference_is_the_model_before_training(folder, full):
    algorithm = ready(PPO(kl_coef=0.5), folder, full_parameters=full)
    steps = make_steps(8)
    before = algorithm.logprobs(algorithm.prepare_steps(steps))
    changed(algorithm)
    samples = algorithm.prepare_steps(steps)
    assert algorithm.logprobs(samples) != before
    flat = [value for sample in samples for value in sample.reference_logprobs]
    assert flat == pytest.approx([value for values in before for value in values], abs=1e-5)
    numbers = algorithm.update(samples)
    assert numbers["kl"] > 0


def test_cut_answers_count_in_the_mean_only(folder):
    algorithm = ready(Reinforce(importance_cap=None), folder, max_train_len=6)
    steps = [
        Step(0, "", "", 1.0, "e", prompt_ids=[5, 6], completion_ids=[7, 0]),
        Step(0, "", "", 1.0, "e", prompt_ids=[5, 6, 7, 8, 9, 10, 11], completion_ids=[7, 0]),
    ]
    both = algorithm.update(steps)
    alone = algorithm.update(steps[:1])
    assert both["loss"] == pytest.approx(alone["loss"] / 2)
    assert both["pct_truncated"] == 0.5
    assert algorithm.update(steps[1:])["loss"] == 0.0


def grouped(rewards: list[float], *, group: str = "g") -> list[Step]:
    steps = with_rewards(make_steps(len(rewards), turns=1), rewards)
    for number, step in enumerate(steps):
        step.group, step.episode, step.pid = group, number, 0
    return steps


def test_group_algorithms_compare_games_of_a_group(folder):
    steps = grouped([1.0, 3.0, 8.0])
    mean, spread = 4.0, (26 / 3) ** 0.5
    expected = [(value - mean) / spread for value in (1.0, 3.0, 8.0)]
    assert advantages(ready(GRPO(), folder), steps) == pytest.approx(expected)
    assert advantages(ready(DrGRPO(), folder), steps) == [-3.0, -1.0, 4.0]
    assert advantages(ready(RLOO(), folder), steps) == [-4.5, -1.5, 6.0]


def test_group_algorithms_compare_seats_apart(folder):
    steps = grouped([1.0, 3.0, -1.0, -3.0])
    steps[2].pid = steps[3].pid = 1
    assert advantages(ready(DrGRPO(), folder), steps) == [-1.0, 1.0, 1.0, -1.0]


@pytest.mark.parametrize("algorithm", [GRPO, DrGRPO, RLOO])
def test_group_algorithms_refuse_other_batches(folder, algorithm):
    steps = grouped([1.0, 2.0])
    steps[1].group = ""
    with pytest.raises(ValueError, match="buffer_strategy='groups'"):
        ready(algorithm(), folder).prepare_steps(steps)


def test_grpo_weighs_answers_by_their_own_length(folder):
    steps = [
        Step(0, "", "", 1.0, "e", prompt_ids=[5], completion_ids=[7] * n, group="g", episode=n)
        for n in (1, 4)
    ]
    assert ready(GRPO(), folder).prepare_batch(steps).weight.tolist() == [0.5, *[0.125] * 4]
    assert ready(DrGRPO(), folder).prepare_batch(steps).weight.tolist() == pytest.approx(
        [1 / 32] * 5
    )


def value_of(algorithm: Any, prompt: list[int]) -> float:
    sample = Sample((*prompt, 7, 0), len(prompt), (), Step(0, "", "", 0.0, "e"))
    value: float = algorithm.values([sample])[0]
    return value


def test_the_critic_sees_the_state_and_not_the_answer(folder):
    algorithm = ready(A2C(), folder)
    torch.nn.init.ones_(algorithm.value_head.weight)
    assert value_of(algorithm, [5, 6, 7]) != pytest.approx(value_of(algorithm, [5, 9, 7]))
    steps = [
        Step(0, "", "", 0.0, "e", prompt_ids=[5, 6, 7], completion_ids=answer)
        for answer in ([7, 0], [9, 9, 0])
    ]
    first, second = algorithm.values(algorithm.prepare_steps(steps))
    assert first == pytest.approx(second, abs=1e-6)


def test_untrained_critic_predicts_zero(folder):
    steps = with_rewards(make_steps(4, turns=4), [1.0, 1.0, 1.0, 1.0])
    samples = ready(A2C(gae_lambda=1.0), folder).prepare_steps(steps)
    # the outcome once per turn, never summed over the turns that are left
    assert [sample.advantage for sample in samples] == [1.0, 1.0, 1.0, 1.0]
    assert [sample.target for sample in samples] == [1.0, 1.0, 1.0, 1.0]


def test_a2c_orders_turns_and_separates_games(folder):
    steps = with_rewards(make_steps(6, turns=3), [1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    algorithm = ready(A2C(gae_lambda=0.0), folder)
    mixed = [steps[index] for index in (5, 2, 0, 4, 1, 3)]
    found = {id(s.step): s.advantage for s in algorithm.prepare_steps(mixed)}
    assert [found[id(step)] for step in steps] == [0.0, 0.0, 1.0, 0.0, 0.0, -1.0]


def test_the_critic_learns_which_position_is_good(folder):
    algorithm = ready(A2C(), folder)
    good = Step(0, "", "", 1.0, "e", prompt_ids=[5, 6], completion_ids=[0], episode=0)
    bad = Step(0, "", "", -1.0, "e", prompt_ids=[8, 9], completion_ids=[0], episode=1)
    optimizer = torch.optim.AdamW(algorithm.value_head.parameters(), lr=0.05)
    for _ in range(80):
        optimizer.zero_grad()
        numbers = algorithm.update([good, bad])
        optimizer.step()
    assert numbers["value_loss"] < 0.05
    samples = algorithm.prepare_steps([good, bad])
    assert [s.advantage for s in samples] == pytest.approx([0.0, 0.0], abs=0.4)


def test_critic_trains_trunk_only_on_request(folder):
    steps = with_rewards(make_steps(4), [0.0] * 4)
    for trunk in (False, True):
        algorithm = ready(A2C(train_trunk=trunk, value_coef=1.0), folder)
        torch.nn.init.ones_(algorithm.value_head.weight)
        samples = algorithm.prepare_steps(steps)
        for sample in samples:
            sample.advantage = 0.0
        algorithm.update(samples)
        trained = [p for p in algorithm.model.parameters() if p.requires_grad]
        moved = any(p.grad is not None and p.grad.abs().sum() > 0 for p in trained)
        assert moved == trunk
        assert algorithm.value_head.weight.grad is not None
