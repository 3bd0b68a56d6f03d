"""Write a judge: draft it, run it sandboxed on real episodes, let a reviewer attack it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np

from p2p.agents.authoring import CheckOutcome, CodeAuthor
from p2p.agents.builtin.judge import measurable
from p2p.agents.builtin.judge import write_judge as write_by_rule
from p2p.agents.judge_code import SUMMARY_KEYS, episode_summary, run_judge, trajectory_columns
from p2p.agents.requests import CriteriaTooEasy, JudgeRequest, RejectedCriteria
from p2p.agents.screening import find_easy
from p2p.config import TrainConfig
from p2p.contracts import AuthoredCode, Criterion, Intent, JudgeOpinion
from p2p.inference.llm_client import LLMClient
from p2p.inference.providers import BUILTIN
from p2p.prompts import body_facts, listing, tags_text
from p2p.records.formatting import format_score
from p2p.sandbox import explain_problems
from p2p.training.env_spec import spec_for
from p2p.training.evaluation import evaluation_seed, record_behaviours
from p2p.training.trajectory import RecordedEpisode

EPISODES = 2
"""Of zero and of random actions each; and the first step of one of them."""
SEED = evaluation_seed(4001)

_TOO_EASY = "the judge does not measure what was asked, or the criteria ask too little"
_AS_WRITTEN = "if it measures them as they are written, give it unchanged: they are then rewritten"
BY_RULE = "\n\n# --- measured by rule, and not by the author above ---\n"
_TOGETHER = """
def _by_rule():
{rules}
    return judge_fn


def _together(judge_asked, judge_rest):
    def judge_fn(trajectory, summary):
        asked = judge_asked(trajectory, summary)
        if not isinstance(asked, dict) or not isinstance(asked.get("criteria"), dict):
            return asked
        rest = judge_rest(trajectory, summary)
        missed = [name for name, each in rest["criteria"].items() if each["score"] < 1.0]
        texts = (asked.get("diagnosis"), rest["diagnosis"] if missed else "")
        tags = [*asked.get("failure_tags", ()), *(rest["failure_tags"] if missed else ())]
        return {{
            "criteria": {{**asked["criteria"], **rest["criteria"]}},
            "diagnosis": "; ".join(str(text) for text in texts if text).replace(".; ", "; "),
            "failure_tags": list(dict.fromkeys(tags)),
        }}

    return judge_fn


judge_fn = _together(judge_fn, _by_rule())
"""

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

    With `amendments`, `code` is the judge that they amend. A model is asked for those criteria only
    that no rule measures to the letter, or whose id is in an amendment.

    Raises InferenceError, SandboxUnavailable where there is no sandbox, and CriteriaTooEasy where
    the criteria are at fault and not final.
    """
    rules, by_rule = "", frozenset[str]()
    if client.model != BUILTIN:
        columns = trajectory_columns(spec_for(config))
        ours = measurable(config.env_id, intent.measured, columns)
        amended = set(re.findall(r"\w+", " ".join(amendments)))
        ours = tuple(criterion for criterion in ours if criterion.id not in amended)
        by_rule = frozenset(criterion.id for criterion in ours)
        request = JudgeRequest(
            prompt=intent.prompt, env_id=config.env_id, criteria=ours, columns=columns
        )
        rules = write_by_rule(request).code if ours else ""
    asked = tuple(each for each in intent.measured if each.id not in by_rule)
    ruled = AuthoredCode(code=rules, author=BUILTIN, valid=True)
    if not asked and intent.final:
        return ruled
    judge = JudgeAuthor(client, intent.model_copy(update={"criteria": asked}), config)
    judge.amended, judge.amendments = code.partition(BY_RULE)[0], amendments
    judge.rules, judge.measured = rules, intent.measured
    with _trial(config) as judge.trial:
        if not asked:
            judge.check("")
            return ruled
        authored = judge.write(review=review)
    if not authored.valid:
        return authored
    return authored.model_copy(update={"code": with_rules(authored.code, rules)})


def with_rules(code: str, rules: str) -> str:
    """The judge of an author, with the criteria that another one measures."""
    if not (code and rules):
        return code or rules
    return code + BY_RULE + _TOGETHER.format(rules=indent(rules, "    "))


class JudgeAuthor(CodeAuthor):
    """Who writes `judge_fn(trajectory, summary)`."""

    role = "judge_author"
    reviewer = "judge_reviewer"
    definition = r"(?m)^def\s+judge_fn\b"
    trial: Trial
    amended: str = ""
    """The judge that is amended; empty: there is none yet."""
    amendments: tuple[str, ...] = ()
    rules: str = ""
    """The judge by rule of the criteria that this one is not asked for."""
    measured: tuple[Criterion, ...]
    """All criteria: a task is met without skill only where each of its parts is."""
    rejected: RejectedCriteria | None = None
    """What the author has been told of: if its next judge measures the same, that is no mistake."""

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
            with_rules(code, self.rules),
            [file for file, _ in self.trial.values()],
            [summary for _, summary in self.trial.values()],
            self.measured,
        )
        reasons: dict[str, str] = {}
        for name, opinion in zip(self.trial, opinions, strict=True):
            if not opinion.available:
                reasons.setdefault(opinion.reason, name)
            else:
                for problem in _check_counts(opinion, self.intent.criteria):
                    reasons.setdefault(problem, name)
        problems = [f"{where}: {reason}" for reason, where in reasons.items()]
        if problems:
            problems += explain_problems(code)
        easy = find_easy(
            {
                act: [o for name, o in zip(self.trial, opinions, strict=True) if act in name]
                for act in ("zero actions", "random actions")
            },
            self.measured,
            # Who measures by rule, and who writes criteria by hand, is not asked about it.
            idle_meets=bool(self.intent.idle) or self.intent.author in (BUILTIN, "user"),
        )
        asked = {criterion.id for criterion in self.intent.criteria}

        def lines(ids: Collection[str]) -> tuple[str, ...]:
            scores = (_scores(opinion, ids) for opinion in opinions)
            return tuple(f"{name}: {text}" for name, text in zip(self.trial, scores, strict=True))

        if easy.met_by and not problems:
            ids = [criterion.id for criterion in easy.task]
            measured = lines(ids)
            now = RejectedCriteria(met_by=easy.met_by, criteria=easy.task, measured=measured)
            too_easy = CriteriaTooEasy(now)
            if not self.intent.final and (now == self.rejected or asked.isdisjoint(ids)):
                raise too_easy
            self.rejected = now
            problems = [f"{too_easy} ({', '.join(ids)}): {_TOO_EASY}"]
            problems += [] if self.intent.final else [_AS_WRITTEN]
        return CheckOutcome(tuple(problems), "\n".join((*lines(asked), *easy.notes)))


@contextmanager
def _trial(config: TrainConfig) -> Iterator[Trial]:
    """Recorded once, for all checks of a judge."""
    episodes = record_behaviours(config, ("zero", "random"), episodes=EPISODES, seed=SEED)
    zero, random = episodes[:EPISODES], episodes[EPISODES:]
    played = {f"zero actions, episode {i + 1}": episode for i, episode in enumerate(zero)}
    played |= {f"random actions, episode {i + 1}": episode for i, episode in enumerate(random)}
    # As if the episode had ended at once.
    first = random[0].part(slice(1)).arrays() | {"terminated": np.array([True])}
    played["an episode of one step"] = RecordedEpisode.from_arrays(first)
    with tempfile.TemporaryDirectory(prefix="p2p-judge-") as folder:
        trial: Trial = {}
        for i, (name, trajectory) in enumerate(played.items()):
            file = Path(folder) / f"{i}.npz"
            trajectory.save(file, lasting=False)
            trial[name] = file, episode_summary(config, trajectory, seed=SEED)
        yield trial


def _check_counts(opinion: JudgeOpinion, criteria: Sequence[Criterion]) -> Iterator[str]:
    """Yield what is wrong with an opinion's counts of events."""
    events = {criterion.id: criterion.event for criterion in criteria if criterion.event}
    for each in opinion.criteria:
        value = each.value
        if each.id in events and (value is None or value < 0 or value != int(value)):
            yield (
                f"the value of {each.id!r} is {value}: it must be the whole number of times that "
                f"it {events[each.id]} in the episode"
            )


def _scores(opinion: JudgeOpinion, asked: Collection[str]) -> str:
    """Return what the judge gave for the criteria that it was asked for."""
    if opinion.score is None:
        return f"not judged: {opinion.reason}"
    return ", ".join(
        f"{each.id} {'-' if each.score is None else format_score(each.score)}"
        + ("" if each.value is None else f" (value {each.value:.4g})")
        for each in opinion.criteria
        if each.id in asked
    )
