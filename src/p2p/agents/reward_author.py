"""Write a reward: draft it, run it sandboxed on the real environment, review and rank it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from p2p.agents import known_behaviour
from p2p.agents.authoring import Report, Workshop, ask_review
from p2p.agents.known_behaviour import Behaviour, Judged, Paid, RewardFailed
from p2p.agents.requests import CodeReview, ReviewRequest, RewardRequest
from p2p.config import TrainConfig
from p2p.contracts import AuthoredCode, Intent
from p2p.inference.llm_client import LLMClient
from p2p.prompts import build
from p2p.prompts.env_facts import all_facts
from p2p.training.env_spec import get_env_spec
from p2p.training.policies.policy import Policy
from p2p.training.reward.check import CheckFinding, CheckReport, check_reward

FUNCTION = r"(?m)^(def\s+(reward_fn|_make_reward)\b|class\s+\w+|reward_fn\s*=)"
FATAL_WARNINGS = ("constant_reward",)
"""Warnings of the checker that make training pointless."""

WaitForJudge = Callable[[], str | None]
"""The judge's code, waited for where it is still being written; None: there is none."""


def write_reward(
    client: LLMClient,
    intent: Intent,
    config: TrainConfig,
    *,
    review: bool,
    previous_best: Policy | None = None,
    judge: WaitForJudge | None = None,
    unsafe_local: bool = False,
) -> AuthoredCode:
    """A reward for the criteria; `valid` is False if it could not be made to run in 5 fixes.

    `judge` gives the judge's code: with it, the reward must order what can already be seen (zero
    actions, random actions, `previous_best`) as the criteria do, or its author is told.

    Raises InferenceError, and SandboxUnavailable where there is no sandbox.
    """
    work = _workshop(client, intent, config)
    work.draft()
    trial = _Trial(client, intent, config, previous_best, judge, unsafe_local)
    return work.run(trial.check, trial.review if review else None, trial.rank)


def mend_reward(
    client: LLMClient,
    intent: Intent,
    config: TrainConfig,
    code: str,
    *,
    review: bool,
    author: str = "user",
    previous_best: Policy | None = None,
    judge: WaitForJudge | None = None,
    unsafe_local: bool = False,
) -> AuthoredCode:
    """The same way for code that is there already, a revision's or a person's.

    Code that passes is kept as it is, and without a review no model is asked.
    """
    work = _workshop(client, intent, config)
    work.take(code, author)
    trial = _Trial(client, intent, config, previous_best, judge, unsafe_local)
    return work.run(trial.check, trial.review if review else None, trial.rank)


def _workshop(client: LLMClient, intent: Intent, config: TrainConfig) -> Workshop:
    request = RewardRequest(
        prompt=intent.prompt,
        env_id=config.env_id,
        criteria=intent.criteria,
        side_info=config.side_info,
    )
    instructions, prompt = build("reward_author", request, **_sections(config))
    return Workshop(client, "reward_author", instructions, prompt, FUNCTION)


def _sections(config: TrainConfig) -> dict[str, str]:
    spec = get_env_spec(config.env_id, config.engine)
    return {"environment": all_facts(spec), "access": access(side_info=config.side_info)}


def access(*, side_info: bool) -> str:
    """What a reward can reach, in words."""
    if side_info:
        return (
            "Besides obs, action, next_obs and info, the reward reaches the simulator's state as "
            'info["mj_data"] (qpos, qvel, xpos, xquat, cvel, cfrc_ext; on a batch with a first '
            'axis of N: write qpos[..., i] and xpos[..., b, i]) and its model as info["mj_model"].'
        )
    return (
        "The reward reaches obs, action, next_obs and info, nothing else: of the state arrays "
        "(qpos, xpos, ...) only what the observation table shows."
    )


class _Trial:
    """One reward's examination: what it is checked, reviewed and ranked with."""

    def __init__(
        self,
        client: LLMClient,
        intent: Intent,
        config: TrainConfig,
        previous_best: Policy | None,
        judge: WaitForJudge | None,
        unsafe_local: bool,
    ) -> None:
        self.client = client
        self.intent = intent
        self.config = config
        self.previous_best = previous_best
        self.judge = judge
        self.unsafe_local = unsafe_local
        self._paid: dict[str, dict[Behaviour, Paid]] = {}
        self._judged = cache(self._ask_judge)

    def check(self, code: str) -> Report:
        """Run it: on steps of all kinds, then through whole episodes."""
        report = check_reward(
            code or "\n",  # without a line break it would be the name of a file
            self.config.env_id,
            side_info=self.config.side_info,
            unsafe_local=self.unsafe_local,
            engine=self.config.engine,
        )
        problems = [_said(f) for f in report.findings if f.level == "error"]
        problems += [_said(f) for f in report.findings if f.code in FATAL_WARNINGS]
        measured = describe(report)
        if not problems:
            try:
                paid = known_behaviour.pay(
                    code, self.config, self.previous_best, unsafe_local=self.unsafe_local
                )
            except RewardFailed as error:
                problems.append(str(error))
            else:
                self._paid[code] = paid
                measured = f"{measured}\n{known_behaviour.in_words(paid)}"
        return Report(tuple(problems), measured)

    def review(self, code: str, measured: str) -> CodeReview:
        """Let a second conversation look at it."""
        request = ReviewRequest(
            prompt=self.intent.prompt,
            env_id=self.config.env_id,
            criteria=self.intent.criteria,
            code=code,
            measured=measured,
        )
        instructions, prompt = build("reward_reviewer", request, **_sections(self.config))
        return ask_review(self.client, "reward_reviewer", instructions, prompt, FUNCTION)

    def rank(self, code: str) -> tuple[str, ...]:
        """Compare what it pays with what the criteria say."""
        horizon = known_behaviour.shortened(self.config).max_episode_steps or 0
        return known_behaviour.mismatches(self._paid[code], self._judged(), horizon=horizon)

    def _ask_judge(self) -> dict[Behaviour, Judged]:
        code = self.judge() if self.judge is not None else None
        if not code:
            return {}
        return known_behaviour.judge(
            code,
            self.intent.criteria,
            self.config,
            self.previous_best,
            unsafe_local=self.unsafe_local,
        )


def _said(finding: CheckFinding) -> str:
    known = finding.line is None or f"line {finding.line}" in finding.message
    return finding.message if known else f"line {finding.line}: {finding.message}"


def describe(report: CheckReport) -> str:
    """What a check measured, for a reviewer and for the record; the same for the same code."""
    said = (f for f in report.findings if f.level != "info" and f.code != "slow")
    lines = [f"{f.level}: {f.message}" for f in said]
    if report.result is not None:
        called = "once for a batch" if report.result.batched else "for each environment"
        lines.append(f"called {called}; {report.result.batch_reason}".rstrip("; "))
        lines += [
            f"{each.name}: {each.minimum:.4g} to {each.maximum:.4g}, mean {each.mean:.4g} per step"
            for each in (report.result.total, *report.result.terms)
        ]
    return "\n".join(lines)
