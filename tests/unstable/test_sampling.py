"""Draw tokens, and learn the distribution that they were drawn from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from collector_run import Run
from hypothesis import given
from hypothesis import strategies as st
from test_algorithms_policies import ready
from test_collector_engine import model_run, played

from unstable.actor import VLLMActor
from unstable.algorithms import PPO, Reinforce
from unstable.algorithms.forward import token_logprobs
from unstable.algorithms.policy_gradient import to_sample
from unstable.config import SamplingConfig, make_config
from unstable.core import Step, Trajectory
from unstable.engines import Sampling
from unstable.engines.decoder import sample_tokens
from unstable.run.parts import ConfigError, check

HALVES = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
"""Four tokens, by their probabilities."""


def draw_rows(
    logits: torch.Tensor, rows: list[tuple[float, float, float]], forced: int = -1
) -> tuple[torch.Tensor, torch.Tensor]:
    uniform, temperature, top_p = torch.tensor(rows, dtype=torch.float64).float().T
    return sample_tokens(logits, uniform, temperature, top_p, torch.full((len(rows),), forced))


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
def test_sampling_inverts_the_distribution(
    uniform: float, temperature: float, top_p: float, token: int
):
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


def test_uniform_of_one_draws_the_last_kept_token():
    tokens, logprobs = draw_rows(HALVES, [(1.0, 1.0, 1.0), (1.0, 1.0, 0.75)])
    assert tokens.tolist() == [3, 1]
    assert logprobs.isfinite().all()


def test_a_forced_token_is_given_its_log_probability():
    tokens, logprobs = draw_rows(HALVES, [(0.0, 1.0, 1.0)], forced=2)
    assert tokens.tolist() == [2]
    assert logprobs.tolist() == pytest.approx([math.log(0.125)])


def test_invalid_logits_give_invalid_log_probability():
    logits = torch.tensor([[0.0, math.nan], [math.inf, 0.0], [-math.inf, 0.0]])
    tokens, logprobs = draw_rows(logits, [(0.3, 1.0, 1.0)] * 3)
    assert tokens[2] == 1
    assert logprobs.isfinite().tolist() == [False, False, True]


PROMPT = [5, 6, 7]
DRAWS = 20_000
"""At evenly spaced numbers, so that every token comes as often as it is likely."""


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling.of(SamplingConfig().model_dump()), Sampling(temperature=0.7)],
    ids=["engine", "run", "cooler"],
)
@pytest.mark.parametrize("algorithm", [Reinforce(), PPO()], ids=["reinforce", "ppo"])
def test_equal_rewards_leave_the_logits_alone(folder: str, sampling: Sampling, algorithm: Any):
    ready(algorithm, folder, full_parameters=True)
    network = algorithm.model
    with torch.no_grad():
        out = network(torch.tensor([PROMPT]), output_hidden_states=True)
        logits, state = out.logits[0, -1:].float(), out.hidden_states[-1][0, -1]
    uniform = (torch.arange(DRAWS) + 0.5) / DRAWS
    temperature, top_p = (torch.full((DRAWS,), x) for x in (sampling.temperature, sampling.top_p))
    no_token = torch.full((DRAWS,), -1)
    tokens, logprobs = sample_tokens(
        logits.expand(DRAWS, -1), uniform, temperature, top_p, no_token
    )
    steps = [
        Step(0, "", "", 1.0, "e", {}, PROMPT, [token], [logprob], sampling.temperature)
        for token, logprob in zip(tokens.tolist(), logprobs.tolist(), strict=True)
    ]
    algorithm.max_generation_len = 1
    numbers = algorithm.update(steps)
    assert numbers["ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    # All logits come of one state: the head's gradient is theirs times that state.
    gradient = network.lm_head.weight.grad @ state / state.square().sum()
    assert gradient.abs().sum() < 0.015


def test_sampled_and_learned_log_probabilities_are_equal(tmp_path: Path, tiny: Path):
    config = {"model_name": str(tiny), "temperature": 0.7, "max_tokens": 6}
    run = model_run(tmp_path, tiny, vllm_config=config)
    assert played(run, 8)["games"] == 8
    steps = run.steps()
    assert {step.temperature for step in steps} == {0.7}
    algorithm = ready(PPO(kl_coef=0.1, entropy_coef=0.1), str(tiny))
    samples = algorithm.prepare_steps(steps)
    for sample, values in zip(samples, algorithm.logprobs(samples), strict=True):
        assert values == pytest.approx(sample.old_logprobs, abs=1e-4)
        assert sample.reference_logprobs == pytest.approx(sample.old_logprobs, abs=1e-4)
    numbers = algorithm.update(samples)  # with the entropy, and so by another path
    assert numbers["ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert numbers["kl"] == pytest.approx(0.0, abs=1e-5)
    plain = ready(Reinforce(), str(tiny)).update(steps)
    assert plain["ratio_mean"] == pytest.approx(1.0, abs=1e-4)


def test_equal_answers_at_two_temperatures_stay_apart(folder: str):
    algorithm = ready(Reinforce(), folder)
    steps = [
        Step(0, "", "", 1.0, "e", {}, PROMPT, [8, 9], temperature=temperature)
        for temperature in (1.0, 0.7, 1.0)
    ]
    one, cooler, again = algorithm.logprobs([to_sample(step, None) for step in steps])
    assert one == again
    logits = algorithm.model(torch.tensor([[*PROMPT, 8, 9]])).logits[0, 2:4].detach() / 0.7
    expected = logits.log_softmax(-1).gather(1, torch.tensor([[8], [9]]))[:, 0]
    assert cooler == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen head", "trained head"])
@pytest.mark.parametrize("at_once", [50 * 4, 10**6], ids=["chunks", "whole"])
def test_all_learner_paths_divide_by_temperature(frozen: bool, at_once: int):
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 50).requires_grad_(not frozen)
    hidden, targets = torch.randn(33, 8, requires_grad=True), torch.randint(0, 50, (33,))
    temperatures = 0.5 + torch.rand(33)
    logp, spread = token_logprobs(
        hidden, head, targets, temperatures, entropy=not frozen, logits_at_once=at_once
    )
    wanted = torch.distributions.Categorical(logits=head(hidden) / temperatures[:, None])
    torch.testing.assert_close(logp, wanted.log_prob(targets))
    if spread is not None:
        torch.testing.assert_close(spread, wanted.entropy())
    weights = torch.randn(33)
    ours, theirs = (
        torch.autograd.grad((weights * values).sum(), hidden)[0]
        for values in (logp, wanted.log_prob(targets))
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("sampling", "says"), [({"top_p": 0.95}, "top_p is 0.95"), ({"temperature": 0}, "temperature")]
)
def test_sampling_that_cannot_be_learned_is_refused(
    tmp_path: Path, tiny: Path, sampling: dict[str, float], says: str
):
    with pytest.raises(ConfigError, match=says):
        check(make_config({"sampling": sampling}))
    with pytest.raises(ValueError, match=says):
        Run(tmp_path / "configured", vllm_config=sampling)
    actor: Any = VLLMActor({"model_name": str(tiny), "engine": "transformers", **sampling})
    with pytest.raises(ValueError, match=says):
        Run(tmp_path / "by an actor", actor)
    run = Run(tmp_path / "evaluation", training_envs=[], vllm_config=sampling)
    assert run.evaluate(2)[0]["games"] == 2


def test_a_trajectory_without_temperatures_is_of_temperature_one():
    from unstable.buffer import StepBuffer

    buffer = StepBuffer(10)
    buffer.add_trajectory(
        Trajectory(pid=[0], obs=["o"], actions=["a"], final_rewards={0: 1.0}), 0, "e"
    )
    assert buffer.get_batch(1)[0].temperature == 1.0
