"""What is learned is the distribution that answers were sampled from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from collector_run import Run
from test_algorithms_policies import ready
from test_collector_engine import model_run, played

from unstable.actor import VLLMActor
from unstable.algorithms import PPO, Reinforce
from unstable.algorithms.forward import token_logprobs
from unstable.algorithms.policy_gradient import to_sample
from unstable.config import SamplingConfig, make_config
from unstable.core import Step, Trajectory
from unstable.engines import Sampling
from unstable.engines.decoder import draw
from unstable.run.parts import ConfigError, check

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
    tokens, logprobs = draw(logits.expand(DRAWS, -1), uniform, temperature, top_p, no_token)
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
def test_every_path_divides_by_the_temperature(frozen: bool, at_once: int):
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
