"""Who thinks in a session: what the loop asks for, and the agents that answer.

The loop knows `Thinking` only; `AgentThinking` is made of the agents and the models they ask.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from p2p.event_log import EventLog, use_log
from p2p.files import read_model
from p2p.inference.question import InferenceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from p2p.agents.requests import EnvironmentChoice
    from p2p.config import LoopConfig, TrainConfig
    from p2p.contracts import (
        AuthoredCode,
        Intent,
        JudgmentResult,
        Revision,
        SessionAnalysis,
        TrainSummary,
    )
    from p2p.inference.ledger import Ledger
    from p2p.inference.llm_client import LLMClient
    from p2p.records.iteration_record import SessionRecord
    from p2p.records.session_view import SessionView


@dataclass(frozen=True, kw_only=True)
class JudgeTask:
    """A checkpoint to be judged on new episodes."""

    intent: Intent
    judge_code: str | None
    """The code judge; None where only frames are looked at."""
    config: TrainConfig
    policy: Path
    """Folder of the checkpoint."""
    step: int
    episodes: int
    block: int
    """Which starts: 1 for judging, a new number from 2 on for each confirmation."""
    folder: Path
    """Where the episodes are kept."""
    loop: LoopConfig
    training: TrainSummary | None = None


@dataclass(frozen=True, kw_only=True)
class RewardTask:
    """A reward to be written, or made to run."""

    intent: Intent
    config: TrainConfig
    judge: Callable[[], str | None]
    """Waits for the code judge, which is written at the same time; None: there is none."""
    code: str | None = None
    """A revision's or a person's; None: the first is to be written."""
    author: str = ""
    """Of that code."""
    previous_best: Path | None = None
    """Folder of the best policy's checkpoint."""


@dataclass(frozen=True, kw_only=True)
class EarlyTask:
    """Episodes of an early checkpoint that training has recorded anyway."""

    intent: Intent
    judge_code: str
    config: TrainConfig
    step: int
    trajectories: Sequence[Path]
    loop: LoopConfig


@dataclass(frozen=True)
class Usage:
    """What asking models has come to, in all the session's processes."""

    calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    unanswered: int = 0
    """Requests without an answer that may be charged for all the same."""
    unanswered_usd: float = 0.0
    """The most that those can cost."""


class Thinking(Protocol):
    """What the loop needs thought for. All of it may raise an InferenceError."""

    def choose_environment(self, prompt: str) -> EnvironmentChoice:
        """Whose body can do what is asked?"""
        ...

    def elicit(self, prompt: str, env_id: str) -> Intent:
        """What would one measure?"""
        ...

    def reward(self, task: RewardTask) -> AuthoredCode:
        """A reward that runs on the real environment; not `valid` if it could not be made to."""
        ...

    def write_judge(self, intent: Intent, config: TrainConfig) -> AuthoredCode:
        """The code judge."""
        ...

    def judge(self, task: JudgeTask) -> JudgmentResult:
        """Play and judge; a score of None says that no judge could judge."""
        ...

    def judge_early(self, task: EarlyTask) -> JudgmentResult:
        """Judge by code alone, on files that exist."""
        ...

    def revise(self, session: SessionView, iteration: int) -> Revision:
        """What to do differently after this iteration."""
        ...

    def ask_anew(self, *roles: str) -> None:
        """Take no answers for these roles that earlier processes have got."""
        ...

    def usage(self) -> Usage:
        """What it has cost up to now."""
        ...


@dataclass
class AgentThinking:
    """The agents, and the models that a session names.

    The models are made when they are first asked, so that a missing key or an unknown name ends the
    session like any other refusal.
    """

    session: SessionRecord
    loop: LoopConfig
    cancelled: Callable[[], bool] = field(default=lambda: False)
    _client: LLMClient | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def client(self) -> LLMClient:
        """Who is asked."""
        with self._lock:
            if self._client is None:
                check_models(self.loop.model, self.loop.vlm_model)
                self._client = _make_client(
                    self.loop.model,
                    self.session.llm_dir,
                    log=EventLog(self.session.events_path),
                    budget_usd=self.loop.budget_usd,
                    thinking_effort=self.loop.thinking_effort,
                    cancelled=self.cancelled,
                )
            return self._client

    def choose_environment(self, prompt: str) -> EnvironmentChoice:
        """See Thinking."""
        from p2p.agents.intent_elicitor import choose_environment

        return choose_environment(self.client, prompt)

    def elicit(self, prompt: str, env_id: str) -> Intent:
        """See Thinking."""
        from p2p.agents.intent_elicitor import elicit

        return elicit(self.client, prompt, env_id)

    def reward(self, task: RewardTask) -> AuthoredCode:
        """See Thinking."""
        from p2p.agents.reward_author import mend_reward, write_reward
        from p2p.training.policies.policy import Policy

        best = task.previous_best
        previous = Policy.load(best / "policy.safetensors") if best else None
        if task.code is None:
            return write_reward(
                self.client,
                task.intent,
                task.config,
                review=self.loop.review_reward,
                judge=task.judge,
                unsafe_local=self.loop.unsafe_local,
            )
        return mend_reward(
            self.client,
            task.intent,
            task.config,
            task.code,
            review=self.loop.review_reward,
            author=task.author,
            previous_best=previous,
            judge=task.judge,
            unsafe_local=self.loop.unsafe_local,
        )

    def write_judge(self, intent: Intent, config: TrainConfig) -> AuthoredCode:
        """See Thinking."""
        from p2p.agents.judge_author import write_judge

        return write_judge(
            self.client,
            intent,
            config,
            review=self.loop.review_judge,
            unsafe_local=self.loop.unsafe_local,
        )

    def judge(self, task: JudgeTask) -> JudgmentResult:
        """See Thinking."""
        from p2p.agents.judge_agent import judge_run

        vlm = self.client.with_model(self.loop.vlm_model) if self.loop.vlm_model else None
        return judge_run(
            self.client,
            vlm,
            task.intent,
            task.judge_code,
            task.config,
            task.policy,
            step=task.step,
            episodes=task.episodes,
            block=task.block,
            folder=task.folder,
            loop=task.loop,
            training=task.training,
        )

    def judge_early(self, task: EarlyTask) -> JudgmentResult:
        """See Thinking."""
        from p2p.agents.judge_agent import judge_trajectories

        return judge_trajectories(
            task.intent,
            task.judge_code,
            task.config,
            task.trajectories,
            step=task.step,
            loop=task.loop,
        )

    def revise(self, session: SessionView, iteration: int) -> Revision:
        """See Thinking."""
        from p2p.agents.revise_agent import revise

        return revise(self.client, session, iteration)

    def ask_anew(self, *roles: str) -> None:
        """See Thinking."""
        self.client.forget(*roles)

    def usage(self) -> Usage:
        """See Thinking."""
        try:
            client = self.client
        except InferenceError:  # nobody can be asked now; earlier processes may have asked
            return _spent(self.session.llm_dir)
        return _usage(client.ledger)


def _make_client(
    model: str,
    folder: Path,
    *,
    log: EventLog | None = None,
    budget_usd: float | None = None,
    thinking_effort: str = "",
    cancelled: Callable[[], bool] = lambda: False,
) -> LLMClient:
    from p2p.agents import builtin
    from p2p.inference.llm_client import LLMClient

    with use_log(log):  # for questions from threads that know no log of their own
        return LLMClient(
            model,
            folder=folder,
            builtin=builtin.answer,
            budget_usd=budget_usd,
            thinking_effort=thinking_effort,
            cancelled=cancelled,
        )


def _spent(folder: Path) -> Usage:
    """What the exchanges in a folder come to."""
    from p2p.inference.ledger import Ledger

    try:
        ledger = Ledger(folder)
    except InferenceError:  # one is damaged, which whoever asks next is told
        return Usage()
    return _usage(ledger)


def _usage(spent: Ledger) -> Usage:
    return Usage(spent.calls, spent.tokens, spent.cost_usd, spent.unanswered, spent.unanswered_usd)


def check_models(model: str, vlm: str) -> None:
    """Raise an InferenceError if one of these cannot be asked: before anything is paid for."""
    from p2p.inference.providers import BUILTIN, choose_model
    from p2p.inference.question import RequestRejected

    choose_model(model)
    if vlm and choose_model(vlm) == BUILTIN:
        raise RequestRejected("the built-in author cannot see: choose another model to look")


def analyze_session(
    session: SessionRecord,
    *,
    model: str = "",
    again: bool = False,
    most_usd: float | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> SessionAnalysis:
    """A report of a session, finished or not; raises an InferenceError, or AskingCancelled.

    It is kept in analysis.json, and made only once unless `again` is asked for. It may cost
    `most_usd`, and no more than the session's own budget has left.
    """
    from p2p.agents.session_analyzer import analyze
    from p2p.contracts import SessionAnalysis
    from p2p.inference.ledger import allowance
    from p2p.records.session_view import SessionView

    kept = read_model(session.analysis_path, SessionAnalysis)
    if kept is not None and not again:
        return kept
    known = session.config.read()
    loop = known.loop if known else None
    asked = model or (loop.model if loop else "")
    own = loop.budget_usd if loop else None
    here = None if most_usd is None else allowance(session.llm_dir, asked, most_usd)
    client = _make_client(
        asked,
        session.llm_dir,
        log=EventLog(session.events_path),
        budget_usd=min((found for found in (own, here) if found is not None), default=None),
        cancelled=cancelled,
    )
    analysis = analyze(client, SessionView(session))
    session.save_analysis(analysis.model_dump(mode="json"))
    return analysis


if TYPE_CHECKING:

    def _is_thinking(agents: AgentThinking) -> Thinking:
        """The type checker holds the agents and what the loop asks of them together."""
        return agents
