"""The prompts about whole sessions stay within bounds, however long a session gets."""

from __future__ import annotations

import pytest

from p2p.agents.requests import AnalysisRequest, PastIteration, ReviseRequest
from p2p.agents.revise_agent import environment_facts
from p2p.agents.session_analyzer import DETAILED
from p2p.agents.session_text import MAX_HISTORY, tunables
from p2p.config import TrainConfig
from p2p.contracts import Criterion, CriterionScore, Lesson
from p2p.prompts import build
from p2p.prompts.budgets import count_tokens
from p2p.records.lineage import MAX_ACTIVE_LESSONS
from p2p.training.env_spec import list_env_ids

LONGEST_REVISION = 15_000
LONGEST_REPORT = 9_000
"""Tokens, with all the iterations, lessons and criteria that are ever shown."""

CODE = "\n".join(
    ["def reward_fn(obs, action, next_obs, info):"] + ["    x = next_obs[..., 3]"] * 100
)
CRITERIA = tuple(
    Criterion(
        id=f"criterion_{n}", title="Moves forward fast", description="As fast as it can. " * 3,
        measure="mean of x_velocity over the episode", comparison="at_least", threshold=2.5,
        unit="m/s", weight=0.5, category="task",
    )
    for n in range(10)
)  # fmt: skip
SCORES = tuple(
    CriterionScore(id=c.id, score=0.512345, std=0.1, value=1.2, evidence="x_velocity is 1.2")
    for c in CRITERIA
)
HISTORY = tuple(
    PastIteration(
        iteration=n, parent=1, score=0.5, final_return=123.4, failure_tags=("fell", "too_slow"),
        changes="more weight on forward velocity and less on effort, because it stood still",
    )
    for n in range(1, MAX_HISTORY + 2)
)  # fmt: skip
LESSONS = tuple(
    Lesson(text=f"{n}: a weight of the effort over 0.1 makes it stand still", learned_at=n)
    for n in range(MAX_ACTIVE_LESSONS)
)


@pytest.mark.parametrize("env_id", list_env_ids())
def test_a_revision_after_many_iterations_fits_in_any_environment(env_id):
    request = ReviseRequest(
        prompt="run forward fast", env_id=env_id, criteria=CRITERIA, iteration=41, best_iteration=7,
        category_of={c.id: c.category for c in CRITERIA}, reward_code=CODE, best_reward_code=CODE,
        score=0.5, pass_threshold=0.8, criterion_scores=SCORES, failure_tags=("too_slow",),
        diagnosis="It leans back and slides. " * 20, dynamics="return: rising since step 5\n" * 12,
        term_shares={"speed": 0.5, "effort": 0.5},
        learning_curve=tuple((1000 * n, 12.345) for n in range(40)), still_improving=True,
        hyperparameters=tunables(TrainConfig()), history=HISTORY, lessons=LESSONS,
        remarks=("do not jump",), stagnation="34 iterations without a better one",
    )  # fmt: skip
    facts = environment_facts(TrainConfig(env_id=env_id, side_info=True))
    instructions, prompt = build("revise_agent", request, environment=facts)
    assert count_tokens(instructions + prompt) <= LONGEST_REVISION
    assert "{{" not in instructions + prompt


def test_a_report_on_many_iterations_fits():
    request = AnalysisRequest(
        prompt="run forward fast",
        env_id="HalfCheetah-v5",
        status="max_iterations",
        criteria=CRITERIA,
        history=HISTORY,
        lessons=LESSONS,
        criterion_scores={past.iteration: SCORES for past in HISTORY[-DETAILED - 1 :]},
    )
    instructions, prompt = build("session_analyzer", request)
    assert count_tokens(instructions + prompt) <= LONGEST_REPORT
