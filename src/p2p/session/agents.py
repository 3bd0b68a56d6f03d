"""The agents of a session with the models that it names; and the report of a session."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from p2p.event_log import EventLog, emit, use_log
from p2p.files import read_model
from p2p.inference.question import InferenceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from p2p.agents.requests import EnvironmentChoice, RejectedCriteria
    from p2p.config import LoopConfig, TrainConfig
    from p2p.contracts import AuthoredCode, Intent, JudgmentResult, Revision, SessionAnalysis
    from p2p.inference.llm_client import LLMClient
    from p2p.inference.vllm_server import VLLMServer
    from p2p.records.iteration_record import IterationRecord, SessionRecord
    from p2p.records.session_view import SessionView


@dataclass
class SessionAgents:
    """Who is asked in a session. Every question may raise an InferenceError.

    The models are made when they are first asked, so that a missing key or an unknown name ends the
    session like any other refusal. Two questions may be under way at a time.
    """

    session: SessionRecord
    loop: LoopConfig
    cancelled: Callable[[], bool] = field(default=lambda: False)
    _client: LLMClient | None = None
    _vllm: VLLMServer | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def client(self) -> LLMClient:
        with self._lock:
            if self._client is None:
                check_models(self.loop.model, self.loop.vlm_model)
                self._serve(self.loop.model)
                self._client = _make_client(
                    self.loop.model,
                    self.session,
                    budget_usd=self.loop.budget_usd,
                    thinking_effort=self.loop.thinking_effort,
                    cancelled=self.cancelled,
                )
            return self._client

    @property
    def vlm(self) -> LLMClient | None:
        """Who looks at the frames."""
        if not self.loop.vlm_model:
            return None
        client = self.client
        with self._lock:
            self._serve(self.loop.vlm_model)
        return client.with_model(self.loop.vlm_model)

    def _serve(self, name: str) -> None:
        """Start vLLM where the model is one of its own and nothing answers; `close` ends it."""
        from p2p.inference.providers import choose_model, split_model
        from p2p.inference.vllm_server import serve_if_absent

        provider, model = split_model(choose_model(name))
        if provider != "vllm" or (self._vllm is not None and self._vllm.healthy()):
            return
        self.close()

        def emit_wait(server: VLLMServer) -> None:
            reason = f"vLLM is starting with {model} at {server.url}; its log is {log}"
            emit("llm.wait", reason=reason)

        log = self.session.path / "vllm.log"
        with use_log(EventLog(self.session.events_path)):
            self._vllm = serve_if_absent(
                model, log=log, on_start=emit_wait, cancelled=self.cancelled
            )
            if self._vllm is not None:
                emit("vllm.ready", model=model, url=self._vllm.url)

    def close(self) -> None:
        """End the server that was started for the session."""
        server, self._vllm = self._vllm, None
        if server is not None:
            server.stop()
            with use_log(EventLog(self.session.events_path)):
                emit("vllm.stopped", model=server.model)

    def choose_environment(self, prompt: str) -> EnvironmentChoice:
        from p2p.agents.intent_elicitor import choose_environment

        return choose_environment(self.client, prompt)

    def elicit(self, prompt: str, env_id: str, rejected: RejectedCriteria | None = None) -> Intent:
        from p2p.agents.builtin.implied import implied_criteria
        from p2p.agents.intent_elicitor import elicit
        from p2p.inference.providers import BUILTIN

        builtin = self.client.model == BUILTIN  # which adds them itself
        return elicit(
            self.client,
            prompt,
            env_id,
            usual=() if builtin else implied_criteria(env_id, prompt),
            pictures=bool(self.loop.vlm_model),
            rejected=rejected,
        )

    def default_training(self, prompt: str, env_id: str) -> dict[str, Any]:
        """The hyperparameters for the user's own criteria; a model chooses them with its reward."""
        from p2p.inference.providers import BUILTIN, choose_model

        if choose_model(self.loop.model) != BUILTIN:
            return {}
        from p2p.agents.builtin.criteria import settings_for

        return settings_for(prompt, env_id)

    def write_reward(
        self,
        intent: Intent,
        config: TrainConfig,
        judge_code: Callable[[], str | None],
        code: str | None = None,
        author: str = "",
        previous_best: Path | None = None,
    ) -> AuthoredCode:
        """A reward; not `valid` if it could not be made to run on the environment.

        With `code`, of a revision or a user, that is kept, and changed where it does not run.
        `judge_code` waits for the judge, which is written at the same time; None: there is none.
        `previous_best` is the checkpoint's folder of the best policy up to now.
        """
        [reward] = self.write_candidates(intent, config, judge_code, 1, code, author, previous_best)
        return reward

    def write_candidates(
        self,
        intent: Intent,
        config: TrainConfig,
        judge_code: Callable[[], str | None],
        count: int,
        code: str | None = None,
        author: str = "",
        previous_best: Path | None = None,
    ) -> tuple[AuthoredCode, ...]:
        """Write up to `count` rewards to choose from, the first as `write_reward` does."""
        from p2p.agents.reward_author import write_candidates
        from p2p.training.policies.policy import Policy

        best = Policy.load(previous_best / "policy.safetensors") if previous_best else None
        return write_candidates(
            self.client,
            intent,
            config,
            count,
            review=self.loop.review_reward,
            code=code,
            author=author,
            previous_best=best,
            judge=judge_code,
        )

    def write_judge(
        self,
        intent: Intent,
        config: TrainConfig,
        code: str = "",
        amendments: tuple[str, ...] = (),
    ) -> AuthoredCode:
        """A judge; with `amendments`, in place of `code`, which they amend."""
        from p2p.agents.judge_author import write_judge

        return write_judge(
            self.client,
            intent,
            config,
            review=self.loop.review_judge,
            code=code,
            amendments=amendments,
        )

    def judge(
        self,
        intent: Intent,
        judge_code: str | None,
        run: IterationRecord,
        config: TrainConfig,
        *,
        step: int,
        episodes: int,
        block: int,
        folder: Path,
        amendments: tuple[str, ...] = (),
    ) -> JudgmentResult:
        """Play a run's checkpoint and judge it; a score of None says that no judge could judge.

        Without `judge_code`, only frames are looked at. `block` says which seeds: 1 for judging, a
        new number from 2 on for each confirmation. The episodes are kept in `folder`.
        """
        from p2p.agents.judge_agent import judge_run

        return judge_run(
            self.client,
            self.vlm,
            intent,
            judge_code,
            config,
            run.checkpoints_dir / f"step_{step}",
            step=step,
            episodes=episodes,
            block=block,
            folder=folder,
            loop=self.loop,
            training=run.read_summary(),
            amendments=amendments,
        )

    def judge_early(
        self,
        intent: Intent,
        judge_code: str,
        config: TrainConfig,
        trajectories: Sequence[Path],
        step: int,
    ) -> JudgmentResult:
        """Judge episodes that training has recorded, by code alone."""
        from p2p.agents.judge_agent import judge_trajectories

        return judge_trajectories(
            intent, judge_code, config, trajectories, step=step, loop=self.loop
        )

    def revise(self, session: SessionView, iteration: int) -> Revision:
        from p2p.agents.revise_agent import revise

        return revise(self.client, session, iteration)

    def forget(self, *roles: str) -> None:
        """Take no answers for these roles that earlier processes have got."""
        self.client.forget(*roles)

    def usage(self) -> dict[str, Any]:
        """What the models have cost in all the session's processes, as SessionResult has it."""
        from p2p.inference.ledger import Ledger

        try:
            spent = self._client.ledger if self._client else Ledger(self.session.llm_dir)
        except InferenceError:  # an exchange is damaged, which whoever asks next is told
            return {}
        return {
            "model_calls": spent.calls,
            "tokens": spent.tokens,
            "cost_usd": spent.cost_usd,
            "unanswered": spent.unanswered,
            "unanswered_usd": spent.unanswered_usd,
        }


def _make_client(model: str, session: SessionRecord, **options: Any) -> LLMClient:
    from p2p.agents import builtin
    from p2p.inference.llm_client import LLMClient

    # For questions from threads that know no log of their own.
    with use_log(EventLog(session.events_path)):
        return LLMClient(model, folder=session.llm_dir, builtin=builtin.answer, **options)


def check_models(model: str, vlm: str) -> None:
    """Raise an InferenceError if one of these cannot be asked: before anything is paid for."""
    from p2p.inference.providers import BUILTIN, choose_model
    from p2p.inference.question import RequestRejected

    choose_model(model)
    if vlm and choose_model(vlm) == BUILTIN:
        raise RequestRejected(
            "the built-in author has no vision: choose another model to judge videos"
        )


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
    view = SessionView(session)
    model = model or view.loop.model
    limits = [
        view.loop.budget_usd,
        None if most_usd is None else allowance(session.llm_dir, model, most_usd),
    ]
    budget = min((limit for limit in limits if limit is not None), default=None)
    client = _make_client(model, session, budget_usd=budget, cancelled=cancelled)
    analysis = analyze(client, view)
    session.save_analysis(analysis.model_dump(mode="json"))
    return analysis
