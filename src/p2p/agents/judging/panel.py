"""The judges of one run: who is asked about which episode, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2p.agents.judging import aggregate, verdicts
from p2p.agents.judging.footage import film
from p2p.agents.judging.judge_code import run_judge
from p2p.agents.judging.synthesis import Case, synthesise
from p2p.agents.judging.verdicts import CONFIDENCE, Verdict
from p2p.agents.judging.visual import look, opinion_of
from p2p.inference.llm_client import LLMClient
from p2p.inference.question import AuthenticationFailed, BudgetExhausted, InferenceError
from p2p.training.evaluation import representative_episodes

if TYPE_CHECKING:
    from p2p.config import LoopConfig
    from p2p.contracts import Intent, JudgeName, JudgeOpinion, JudgeStrategy, JudgmentResult

LOOKED_AT = 3
"""Episodes that are shown to a model, however many are measured."""
NO_CODE = "there is no judge function"
NO_EYES = "no model was given to look at the pictures"


@dataclass(frozen=True, slots=True)
class Episode:
    """A recorded episode and what the judges say of it."""

    label: str
    seed: int | None
    file: Path
    summary: dict[str, Any]
    code: JudgeOpinion | None = None
    vlm: JudgeOpinion | None = None
    verdict: Verdict | None = None

    @property
    def opinions(self) -> tuple[JudgeOpinion, ...]:
        """Of the judges that were asked about it."""
        return tuple(each for each in (self.code, self.vlm) if each is not None)


class Panel:
    """The judges of one run."""

    def __init__(
        self,
        client: LLMClient | None,
        vlm: LLMClient | None,
        intent: Intent,
        judge_code: str | None,
        strategy: JudgeStrategy,
        loop: LoopConfig,
    ) -> None:
        self.client = client
        self.vlm = vlm
        self.intent = intent
        self.code = judge_code
        self.strategy = strategy
        self.loop = loop

    def judge(self, episodes: Sequence[Episode], step: int | None) -> JudgmentResult:
        """Ask the judges, settle what they differ on, sum up."""
        if self.strategy != "vlm":
            episodes = self._measure(episodes)
        if self.strategy != "code":
            episodes = self._look(episodes)
        with ThreadPoolExecutor(LOOKED_AT) as pool:  # a synthesis waits for a model
            decided = list(pool.map(self._settle, episodes))
        decided = [each for each in self._correct(decided) if each.opinions]
        criteria = self.intent.criteria
        return aggregate.judgment(
            [aggregate.rollout(e.label, e.seed, e.opinions, e.verdict, criteria) for e in decided],
            [e.verdict.confidence for e in decided if e.verdict is not None],
            criteria,
            strategy=self.strategy,
            threshold=self.loop.pass_threshold,
            step=step,
            unavailable=_unavailable(decided),
        )

    def _measure(self, episodes: Sequence[Episode]) -> list[Episode]:
        if not self.code:
            return [replace(each, code=verdicts.out("code", NO_CODE)) for each in episodes]
        opinions = run_judge(
            self.code,
            [each.file for each in episodes],
            [each.summary for each in episodes],
            self.intent.criteria,
            unsafe_local=self.loop.unsafe_local,
        )
        return [replace(e, code=opinion) for e, opinion in zip(episodes, opinions, strict=True)]

    def _look(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Film and show a few; with nobody to look, the reason stands at the first."""
        chosen = _representative(episodes)
        shown = [episodes[i] for i in chosen]
        if self.vlm is None:
            seen = [verdicts.out("vlm", NO_EYES) for _ in shown]
        else:
            videos = [e.file.with_name(f"video_{e.label}.mp4") for e in shown]
            problems = film(self.intent.env_id, [e.file for e in shown], videos)
            with ThreadPoolExecutor(LOOKED_AT) as pool:
                seen = list(pool.map(self._see, shown, videos, problems))
        by_place = dict(zip(chosen, seen, strict=True))
        return [replace(e, vlm=by_place.get(i)) for i, e in enumerate(episodes)]

    def _see(self, episode: Episode, video: Path, problem: str) -> JudgeOpinion:
        assert self.vlm is not None
        if problem:
            return verdicts.out("vlm", f"no video could be made: {problem}")
        try:
            verdict = look(self.vlm, self.intent, video, seconds=episode.summary["seconds"])
        except BudgetExhausted:
            raise
        except InferenceError as error:
            if isinstance(error, AuthenticationFailed) and self.strategy == "vlm":
                raise
            return verdicts.out("vlm", str(error) or type(error).__name__)
        return opinion_of(verdict, self.intent.criteria)

    def _settle(self, episode: Episode) -> Episode:
        """The verdict on an episode, as far as it can be told without the others."""
        code, vlm = episode.code, episode.vlm
        there = [each for each in episode.opinions if each.available]
        if not there:
            return episode
        if code is None or vlm is None or len(there) == 1:
            alone = self.strategy != "both"
            return replace(episode, verdict=verdicts.single(there[0], alone=alone))
        if verdicts.agree(code, vlm, self.intent.criteria):
            return replace(episode, verdict=verdicts.merged(code, vlm))
        return replace(episode, verdict=self._synthesis(episode, code, vlm))

    def _synthesis(self, episode: Episode, code: JudgeOpinion, vlm: JudgeOpinion) -> Verdict:
        assert self.client is not None
        assert self.vlm is not None
        case = Case(self.intent, code, vlm, episode.file, episode.summary, self.loop.unsafe_local)
        try:
            return synthesise(self.client, self.vlm, case)
        except BudgetExhausted:
            raise
        except InferenceError as error:
            verdict = verdicts.merged(code, vlm, confidence=CONFIDENCE["undecided"])
            note = f"The judges differ, and it could not be settled ({error})."
            return replace(verdict, diagnosis=f"{verdict.diagnosis} {note}".strip())

    def _correct(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Let what was seen of some episodes count for those that were only measured."""
        pairs = [
            (e.code, e.verdict)
            for e in episodes
            if e.code and e.verdict and e.code.available and e.vlm and e.vlm.available
        ]
        if not pairs:
            return list(episodes)
        by = verdicts.shifts(pairs)
        sure = sum(verdict.confidence for _, verdict in pairs) / len(pairs)
        return [
            replace(e, verdict=replace(verdicts.corrected(e.verdict, by), confidence=sure))
            if e.verdict is not None and e.vlm is None
            else e
            for e in episodes
        ]


def _representative(episodes: Sequence[Episode]) -> list[int]:
    """The places of the episodes to look at."""
    judged = [i for i, e in enumerate(episodes) if e.code and e.code.score is not None]
    if not judged:
        return list(range(min(LOOKED_AT, len(episodes))))
    scores = [e.code.score for e in episodes if e.code and e.code.score is not None]
    return sorted({judged[i] for i in representative_episodes(scores).values()})


def _unavailable(episodes: Sequence[Episode]) -> dict[JudgeName, str]:
    """Judges that were asked for and judged nothing at all, with the reasons they gave."""
    found: dict[JudgeName, str] = {}
    names: tuple[JudgeName, ...] = ("code", "vlm")
    for name in names:
        asked = [o for e in episodes for o in e.opinions if o.judge == name]
        if asked and not any(opinion.available for opinion in asked):
            found[name] = "; ".join(dict.fromkeys(opinion.reason for opinion in asked))
    return found
