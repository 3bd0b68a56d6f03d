"""Write a reward: draft it, run it sandboxed on the real environment, review and rank it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property

from p2p.agents import screening
from p2p.agents.authoring import CheckOutcome, CodeAuthor
from p2p.agents.requests import AlternativeRequest, RewardRequest
from p2p.agents.screening import EnvironmentTooSlow, Judged, Paid, Place, RewardFailed
from p2p.config import TrainConfig
from p2p.contracts import AuthoredCode, CriterionGradient, Intent
from p2p.inference.llm_client import LLMClient
from p2p.inference.providers import BUILTIN
from p2p.inference.question import BadReply
from p2p.prompts import all_facts
from p2p.training.engines.table import is_engine
from p2p.training.env_spec import spec_for
from p2p.training.policies.policy import Policy
from p2p.training.reward_check import CheckFinding, CheckReport, check_reward
from p2p.training.reward_function import EnvironmentFailed

FATAL_WARNINGS = ("constant_reward",)
"""Warnings of the checker that make training pointless."""

WaitForJudge = Callable[[], str | None]
"""The judge's code, waited for where it is still being written; None: there is none."""


def write_candidates(
    client: LLMClient,
    intent: Intent,
    config: TrainConfig,
    count: int = 1,
    *,
    review: bool,
    code: str | None = None,
    author: str = "user",
    previous_best: Policy | None = None,
    judge: WaitForJudge | None = None,
) -> tuple[AuthoredCode, ...]:
    """Write up to `count` different rewards for the criteria in one conversation.

    One is not `valid` if it could not be made to run in 5 fixes. With `code`, a revision's or a
    person's, that is tried and repaired as the first one; where it passes it is kept as it is, and
    without a review no model is asked. `judge` gives the judge's code: with it, a reward must order
    what can already be seen (zero actions, random actions, `previous_best`) as the criteria do, or
    its author is told. Only the first is reviewed, since training will tell; where no further one
    comes, there are fewer. Several are also compared with the judge along scripted motions.

    Raises InferenceError, and SandboxUnavailable where there is no sandbox.
    """
    reward = RewardAuthor(client, intent, config)
    reward.previous_best, reward.judge = previous_best, judge
    written = [reward.write(review=review, code=code, author=author)]
    while written[0].valid and len(written) < count:
        try:
            written.append(reward.write_alternative(written, count))
        except BadReply:
            break
    return tuple(written) if count == 1 else reward.with_gradients(written)


class RewardAuthor(CodeAuthor):
    """Who writes `reward_fn(obs, action, next_obs, info)`."""

    role = "reward_author"
    reviewer = "reward_reviewer"
    definition = r"(?m)^(def\s+(reward_fn|_make_reward)\b|class\s+\w+|reward_fn\s*=)"
    previous_best: Policy | None = None
    judge: WaitForJudge | None = None
    paid: dict[str, Paid]
    """By the code that was checked last."""

    def request(self) -> RewardRequest:
        return RewardRequest(
            prompt=self.intent.prompt,
            env_id=self.config.env_id,
            criteria=self.intent.criteria,
            side_info=self.config.side_info,
            observe_time=self.config.observe_time,
            total_timesteps=self.config.total_timesteps,
            training_horizon=self.config.training_horizon,
        )

    def write_alternative(self, written: Sequence[AuthoredCode], of: int) -> AuthoredCode:
        """Another reward than those; raises BadReply if none comes."""
        request = AlternativeRequest(
            number=len(written) + 1,
            of=of,
            code=written[0].code,
            tried=tuple(each.explanation for each in written[1:]),
        )
        self.steps, self.code = [], ""
        self._ask(self._next_turn("alternative", request), "draft")
        return self._revise_code(review=False)

    def sections(self) -> dict[str, str]:
        facts = [all_facts(spec_for(self.config))]
        if self.client.model != BUILTIN:  # which reads the request alone
            facts.append(screening.describe_unaided(self.config.env_id))
        return {
            "environment": "\n\n".join(facts),
            "access": access(side_info=self.config.side_info),
        }

    def check(self, code: str) -> CheckOutcome:
        """Run it: on steps of all kinds, then through whole episodes.

        Raises EnvironmentFailed where no reward could be run.
        """
        report = check_reward(
            code or "\n",  # without a line break it would be the name of a file
            self.config,
        )
        if failed := next((f for f in report.findings if f.code == "environment"), None):
            raise EnvironmentFailed(failed.message)
        problems = [_message(f) for f in report.findings if f.level == "error"]
        problems += [_message(f) for f in report.findings if f.code in FATAL_WARNINGS]
        measured = _describe(report)
        if not problems:
            try:
                self.paid = screening.pay_behaviours(code, self.config, self.previous_best)
            except EnvironmentTooSlow as error:
                self.paid = {}
                measured += f"\nnot played through whole episodes: {error}"
            except RewardFailed as error:
                problems.append(str(error))
            else:
                measured = f"{measured}\n{screening.describe_paid(self.paid)}"
        if is_engine(self.config.engine):
            measured += (
                f"\nnot screened for cheats: no script can pose a robot of {self.config.engine}"
            )
        return CheckOutcome(tuple(problems), measured)

    def screen(self) -> tuple[str, ...]:
        """Return the cheats that earn as much as the task; none if nothing can be scripted."""
        asked, judged = self.judged_cheats
        if not judged:
            return ()
        try:
            earned = screening.pay_cheats(self.code, self.config, asked)
        except RewardFailed:  # the check before it says what is wrong with a reward
            return ()
        return screening.describe_paid_cheats(asked, judged, earned)

    def rank(self) -> tuple[str, ...]:
        """Compare what it pays with what the criteria say."""
        if not self.paid:
            return ()
        horizon = screening.shorten_episodes(self.config).max_episode_steps or 0
        return screening.find_mismatches(self.paid, self.judged, horizon=horizon)

    def with_gradients(self, written: Sequence[AuthoredCode]) -> tuple[AuthoredCode, ...]:
        """The rewards with how they pay along motions that a script plays, where there are some."""
        code, criteria = self.judge_code, self.intent.criteria
        if not code:
            return tuple(written)
        judged = screening.judge_sweeps(code, criteria, self.config)
        told = {
            name: points for name, points in judged.items() if screening.find_telling_pairs(points)
        }
        rewards = []
        for each in written:
            found: tuple[CriterionGradient, ...] = ()
            if told and each.valid:
                with suppress(RewardFailed):  # the check before it says what is wrong with a reward
                    found = screening.gradients(
                        told, screening.pay_sweeps(each.code, self.config, [*told])
                    )
            rewards.append(each.model_copy(update={"gradients": found}))
        return tuple(rewards)

    @cached_property
    def judge_code(self) -> str:
        """Once it is written; empty where there is none."""
        return (self.judge() if self.judge is not None else None) or ""

    @cached_property
    def judged_cheats(self) -> tuple[Place, dict[str, Judged]]:
        """What stands for the motion that is asked, and what the judge gives for it and cheats.

        Empty where there is no judge, where no script can play the environment (engines), and
        where no scripted motion comes near what is asked.
        """
        code, criteria = self.judge_code, self.intent.criteria
        if not code:
            return ("", 0), {}
        judged = screening.judge_sweeps(code, criteria, self.config, of_root=True)
        asked = screening.find_best_point(judged)
        if asked is None:
            return ("", 0), {}
        return asked, screening.judge_cheats(code, criteria, self.config, asked)

    @cached_property
    def judged(self) -> dict[str, Judged]:
        """By the judge, once it is written."""
        code = self.judge_code
        if not code:
            return {}
        return screening.judge_behaviours(
            code,
            self.intent.criteria,
            self.config,
            self.previous_best,
        )


def access(*, side_info: bool) -> str:
    """Return what a reward can reach, in words."""
    if side_info:
        return (
            "info also has every quantity of the environment by its name, written out: "
            'info["body_position"][..., 1, 2]. It costs nothing to read them; measure with them '
            "what the criteria measure. For what they do not cover there is the simulator's state, "
            'info["mj_data"] (qpos, qvel, xpos, xquat, cvel, cfrc_ext: qpos[..., i], '
            "xpos[..., b, i]), which slows training down."
        )
    return (
        "The reward reaches obs, action, next_obs and info, nothing else: of the state arrays "
        "(qpos, xpos, ...) and of the quantities only what the observation table shows."
    )


def _message(finding: CheckFinding) -> str:
    named = finding.line is None or re.search(rf"(line |:){finding.line}\b", finding.message)
    return finding.message if named else f"line {finding.line}: {finding.message}"


def _describe(report: CheckReport) -> str:
    """What a check measured, for a reviewer and for the record; the same for the same code."""
    shown = (f for f in report.findings if f.level != "info" and f.code != "slow")
    lines = [f"{f.level}: {f.message}" for f in shown]
    if report.result is not None:
        called = "once for a batch" if report.result.batched else "for each environment"
        lines.append(f"called {called}; {report.result.batch_reason}".rstrip("; "))
        lines += [
            f"{each.name}: {each.minimum:.4g} to {each.maximum:.4g}, mean {each.mean:.4g} per step"
            for each in (report.result.total, *report.result.terms)
        ]
        if report.result.failed is not None:
            share = report.result.failed
            lines.append(f"failed is true in {share:.1%} of steps of zero and random actions")
    return "\n".join(lines)
