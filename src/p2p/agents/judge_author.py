"""Write a judge: draft it, run it sandboxed on real episodes, let a reviewer attack it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from p2p.agents.authoring import CheckOutcome, CodeAuthor
from p2p.agents.judging.episodes import SUMMARY_KEYS, episode_summary, trajectory_columns
from p2p.agents.judging.judge_code import run_judge
from p2p.agents.known_behaviour import find_easy
from p2p.agents.requests import JudgeRequest
from p2p.config import TrainConfig
from p2p.contracts import AuthoredCode, Criterion, Intent, JudgeOpinion
from p2p.inference.llm_client import LLMClient
from p2p.prompts.env_facts import body_facts, listing, tags_text
from p2p.sandbox import explain_problems
from p2p.training.env_spec import spec_for
from p2p.training.evaluation import Behaviour, evaluation_seed, record_episodes
from p2p.training.trajectory import RecordedEpisode

EPISODES = 2
"""Of zero and of random actions each; and the first step of one of them."""
SEED = evaluation_seed(4001)

Trial = dict[str, tuple[Path, dict[str, Any]]]
"""Real episodes to try a judge on: their files and summaries, by name."""


def write_judge(
    client: LLMClient,
    intent: Intent,
    config: TrainConfig,
    *,
    review: bool,
    code: str = "",
    amendments: tuple[str, ...] = (),
) -> AuthoredCode:
    """A judge for the criteria; `valid` is False if it could not be made to run in 5 fixes.

    With `amendments`, `code` is the judge that they amend.

    Raises InferenceError, and SandboxUnavailable where there is no sandbox.
    """
    measured = intent.model_copy(update={"criteria": intent.measured})
    judge = JudgeAuthor(client, measured, config)
    judge.amended, judge.amendments = code, amendments
    with _trial(config) as judge.trial:
        return judge.write(review=review)


class JudgeAuthor(CodeAuthor):
    """Who writes `judge_fn(trajectory, summary)`."""

    role = "judge_author"
    reviewer = "judge_reviewer"
    definition = r"(?m)^def\s+judge_fn\b"
    trial: Trial
    amended: str = ""
    """The judge that is amended; empty: there is none yet."""
    amendments: tuple[str, ...] = ()

    def request(self) -> JudgeRequest:
        return JudgeRequest(
            prompt=self.intent.prompt,
            env_id=self.config.env_id,
            criteria=self.intent.criteria,
            columns=trajectory_columns(spec_for(self.config)),
            code=self.amended,
            amendments=self.amendments,
        )

    def sections(self) -> dict[str, str]:
        return {
            "environment": body_facts(spec_for(self.config)),
            "summary": listing(SUMMARY_KEYS),
            "tags": tags_text(),
        }

    def review_sections(self) -> dict[str, str]:
        # The author has the columns in the request.
        return self.sections() | {"columns": listing(self.request().columns)}

    def check(self, code: str) -> CheckOutcome:
        opinions = run_judge(
            code,
            [file for file, _ in self.trial.values()],
            [summary for _, summary in self.trial.values()],
            self.intent.criteria,
        )
        reasons: dict[str, str] = {}
        for name, opinion in zip(self.trial, opinions, strict=True):
            if not opinion.available:
                reasons.setdefault(opinion.reason, name)
            else:
                for problem in _miscounted(opinion, self.intent.criteria):
                    reasons.setdefault(problem, name)
        problems = [f"{where}: {reason}" for reason, where in reasons.items()]
        if problems:
            problems += explain_problems(code)
        easy = find_easy(
            {
                act: [o for name, o in zip(self.trial, opinions, strict=True) if act in name]
                for act in ("zero actions", "random actions")
            },
            self.intent.criteria,
        )
        measured = "\n".join((_describe(list(self.trial), opinions), *easy.notes))
        return CheckOutcome(tuple(problems) or easy.problems, measured)


@contextmanager
def _trial(config: TrainConfig) -> Iterator[Trial]:
    """Recorded once, for all checks of a judge."""
    acts: tuple[Behaviour, ...] = ("zero", "random")
    zero, random = (record_episodes(config, act, episodes=EPISODES, seed=SEED) for act in acts)
    played = {f"zero actions, episode {i + 1}": episode for i, episode in enumerate(zero)}
    played |= {f"random actions, episode {i + 1}": episode for i, episode in enumerate(random)}
    # As if the episode had ended at once.
    first = random[0].part(slice(1)).arrays() | {"terminated": np.array([True])}
    played["an episode of one step"] = RecordedEpisode.from_arrays(first)
    with tempfile.TemporaryDirectory(prefix="p2p-judge-") as folder:
        trial: Trial = {}
        for i, (name, trajectory) in enumerate(played.items()):
            file = Path(folder) / f"{i}.npz"
            trajectory.save(file)
            trial[name] = file, episode_summary(config, trajectory, seed=SEED)
        yield trial


def _miscounted(opinion: JudgeOpinion, criteria: Sequence[Criterion]) -> Iterator[str]:
    """What is wrong with the counts of events."""
    events = {criterion.id: criterion.event for criterion in criteria if criterion.event}
    for each in opinion.criteria:
        value = each.value
        if each.id in events and (value is None or value < 0 or value != int(value)):
            yield (
                f"the value of {each.id!r} is {value}: it must be the whole number of times that "
                f"it {events[each.id]} in the episode"
            )


def _describe(names: Sequence[str], opinions: Sequence[JudgeOpinion]) -> str:
    return "\n".join(
        f"{name}: {_score(opinion)}" for name, opinion in zip(names, opinions, strict=True)
    )


def _score(opinion: JudgeOpinion) -> str:
    if opinion.score is None:
        return f"not judged: {opinion.reason}"
    parts = (
        f"{each.id} {'-' if each.score is None else f'{each.score:.2f}'}"
        + ("" if each.value is None else f" (value {each.value:.4g})")
        for each in opinion.criteria
    )
    return f"score {opinion.score:.2f}: {', '.join(parts)}"
