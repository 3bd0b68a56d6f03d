"""Who writes the judge: drafted, run on real episodes in the sandbox, attacked by a reviewer."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from p2p.agents.authoring import Report, Workshop, ask_review
from p2p.agents.judging.columns import trajectory_columns
from p2p.agents.judging.judge_code import run_judge
from p2p.agents.judging.summaries import SUMMARY_KEYS, episode_summary
from p2p.agents.judging.texts import listing, tags_text
from p2p.agents.requests import CodeReview, JudgeRequest, ReviewRequest
from p2p.config import TrainConfig
from p2p.contracts import AuthoredCode, Intent, JudgeOpinion
from p2p.inference.llm_client import LLMClient
from p2p.prompts import build
from p2p.prompts.env_facts import body_facts
from p2p.sandbox import explain_problems
from p2p.training.env_spec import get_env_spec
from p2p.training.evaluation import evaluation_seed
from p2p.training.recording import record_episodes
from p2p.training.trajectory import Trajectory

FUNCTION = r"(?m)^def\s+judge_fn\b"
EPISODES = 2
"""Of zero and of random actions each; and the first step of one of them."""
SEED = evaluation_seed(4001)


def write_judge(
    client: LLMClient,
    intent: Intent,
    config: TrainConfig,
    *,
    review: bool,
    unsafe_local: bool = False,
) -> AuthoredCode:
    """A judge for the criteria; `valid` is False if it could not be made to run in 5 fixes.

    Raises InferenceError, and SandboxUnavailable where there is no sandbox.
    """
    work = _workshop(client, intent, config)
    work.draft()
    with _episodes(config) as episodes:
        trial = _Trial(client, intent, config, episodes, unsafe_local)
        return work.run(trial.check, trial.review if review else None, None)


def mend_judge(
    client: LLMClient,
    intent: Intent,
    config: TrainConfig,
    code: str,
    *,
    review: bool,
    author: str = "user",
    unsafe_local: bool = False,
) -> AuthoredCode:
    """The same way for code that is there already."""
    work = _workshop(client, intent, config)
    work.take(code, author)
    with _episodes(config) as episodes:
        trial = _Trial(client, intent, config, episodes, unsafe_local)
        return work.run(trial.check, trial.review if review else None, None)


def _workshop(client: LLMClient, intent: Intent, config: TrainConfig) -> Workshop:
    spec = get_env_spec(config.env_id, config.engine)
    request = JudgeRequest(
        prompt=intent.prompt,
        env_id=config.env_id,
        criteria=intent.criteria,
        columns=trajectory_columns(spec),
    )
    instructions, prompt = build(
        "judge_author",
        request,
        environment=body_facts(spec),
        summary=listing(SUMMARY_KEYS),
        tags=tags_text(),
    )
    return Workshop(client, "judge_author", instructions, prompt, FUNCTION)


@dataclass(frozen=True, slots=True)
class Episodes:
    """Real episodes to try a judge on."""

    names: tuple[str, ...]
    files: tuple[Path, ...]
    summaries: tuple[dict[str, Any], ...]


@contextmanager
def _episodes(config: TrainConfig) -> Iterator[Episodes]:
    """Recorded once, for all checks of a judge."""
    zero = record_episodes(config, "zero", episodes=EPISODES, seed=SEED)
    random = record_episodes(config, "random", episodes=EPISODES, seed=SEED)
    played = {f"zero actions, episode {i + 1}": episode for i, episode in enumerate(zero)}
    played |= {f"random actions, episode {i + 1}": episode for i, episode in enumerate(random)}
    played["an episode of one step"] = _first_step(random[0])
    with tempfile.TemporaryDirectory(prefix="p2p-judge-") as folder:
        files = [Path(folder) / f"{i}.npz" for i in range(len(played))]
        for file, trajectory in zip(files, played.values(), strict=True):
            trajectory.save(file)
        summaries = [episode_summary(config, each, seed=SEED) for each in played.values()]
        yield Episodes(tuple(played), tuple(files), tuple(summaries))


def _first_step(trajectory: Trajectory) -> Trajectory:
    """As if the episode had ended at once."""
    first = trajectory.part(slice(1)).arrays()
    return Trajectory.from_arrays(first | {"terminated": np.array([True])})


class _Trial:
    """One judge's examination."""

    def __init__(
        self,
        client: LLMClient,
        intent: Intent,
        config: TrainConfig,
        episodes: Episodes,
        unsafe_local: bool,
    ) -> None:
        self.client = client
        self.intent = intent
        self.config = config
        self.episodes = episodes
        self.unsafe_local = unsafe_local

    def check(self, code: str) -> Report:
        """Run it on real episodes."""
        opinions = run_judge(
            code,
            self.episodes.files,
            self.episodes.summaries,
            self.intent.criteria,
            unsafe_local=self.unsafe_local,
        )
        reasons: dict[str, str] = {}
        for name, opinion in zip(self.episodes.names, opinions, strict=True):
            if not opinion.available:
                reasons.setdefault(opinion.reason, name)
        problems = [f"{where}: {reason}" for reason, where in reasons.items()]
        if problems:
            problems += explain_problems(code)
        return Report(tuple(problems), describe(self.episodes.names, opinions))

    def review(self, code: str, measured: str) -> CodeReview:
        """Let a second conversation look for loopholes."""
        spec = get_env_spec(self.config.env_id, self.config.engine)
        request = ReviewRequest(
            prompt=self.intent.prompt,
            env_id=self.config.env_id,
            criteria=self.intent.criteria,
            code=code,
            measured=measured,
        )
        instructions, prompt = build(
            "judge_reviewer",
            request,
            environment=body_facts(spec),
            columns=listing(trajectory_columns(spec)),
            summary=listing(SUMMARY_KEYS),
            tags=tags_text(),
        )
        return ask_review(self.client, "judge_reviewer", instructions, prompt, FUNCTION)


def describe(names: Sequence[str], opinions: Sequence[JudgeOpinion]) -> str:
    """What a judge gave, one line for each episode."""
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
