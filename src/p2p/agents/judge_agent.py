"""Judge a policy: by code, by looking, or by both; on several episodes, by one rubric."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from p2p.agents import verdicts
from p2p.agents.judge_code import episode_summary, run_judge
from p2p.agents.verdicts import JudgedEpisode
from p2p.agents.visual_judge import Film, film, look, synthesise
from p2p.inference.question import AuthenticationFailed, BudgetExhausted, InferenceError
from p2p.inference.vlm import takes_video
from p2p.training.evaluation import evaluation_seed, play_episodes, representative_episodes
from p2p.training.policies.policy import Policy
from p2p.training.trajectory import RecordedEpisode

if TYPE_CHECKING:
    from p2p.config import LoopConfig, TrainConfig
    from p2p.contracts import (
        CriterionScore,
        Intent,
        JudgeOpinion,
        JudgeStrategy,
        JudgmentResult,
        TrainSummary,
    )
    from p2p.inference.llm_client import LLMClient

LOOKED_AT = 3
"""Episodes that are shown to a model, however many are measured."""
NO_CODE = "there is no judge function"
NO_EYES = "no model was given to look at the pictures"


def judge_run(
    client: LLMClient,
    vlm: LLMClient | None,
    intent: Intent,
    judge_code: str | None,
    config: TrainConfig,
    policy: Path,
    *,
    step: int,
    episodes: int,
    block: int,
    folder: Path,
    loop: LoopConfig,
    training: TrainSummary | None = None,
    amendments: tuple[str, ...] = (),
) -> JudgmentResult:
    """Play a policy on the starts of a block and judge what it does.

    Every episode is measured; three of them are looked at where someone looks: the first, and the
    p10 and p90 of the rest by the code judge's score, or the next two without one. Where code finds
    a hard criterion missed in every episode, only the first is, unless who settles overrules that.
    Trajectories and videos stay in `folder`.

    Args:
        client: Settles what the two judges differ on.
        vlm: Looks at the pictures; None: nobody does.
        intent: The rubric.
        judge_code: The source of `judge_fn`; None: there is none.
        config: How the policy was trained.
        policy: Its file, or the folder of its checkpoint.
        step: Of its checkpoint.
        episodes: How many to play.
        block: Of `evaluation_seed`; no two blocks share a start.
        folder: Where the episodes are kept.
        loop: Threshold, strategy, sandbox.
        training: What is told to the judge of the training run.
        amendments: What was misjudged on earlier policies, for who looks and who settles.

    Raises:
        BudgetExhausted: the session's budget does not allow for the next question.
        AuthenticationFailed: the only judge asked for has no valid key.
        SandboxUnavailable, PolicyFileError, OSError
    """
    seed = evaluation_seed(block)
    played = []
    folder.mkdir(parents=True, exist_ok=True)
    acting = Policy.load(policy / "policy.safetensors" if policy.is_dir() else policy)
    each_episode = play_episodes(config, acting, episodes=episodes, seed=seed)
    for number, trajectory in enumerate(each_episode, seed):
        file = folder / f"trajectory_seed_{number}.npz"
        trajectory.save(file)
        summary = episode_summary(config, trajectory, seed=number, step=step, training=training)
        played.append(JudgedEpisode(f"seed_{number}", number, file, summary))
    judges = EpisodeJudge(client, vlm, intent, judge_code, loop.strategy, loop, amendments)
    return judges.judge(played, step)


def judge_trajectories(
    intent: Intent,
    judge_code: str,
    config: TrainConfig,
    trajectories: Sequence[Path],
    *,
    step: int | None,
    loop: LoopConfig,
) -> JudgmentResult:
    """Judge episodes that are recorded already, by code alone.

    The last part of a file's name is the episode's label, as in trajectory_1024_median.npz.
    """
    played = [
        JudgedEpisode(
            label=file.stem.rpartition("_")[2],
            seed=None,
            file=file,
            summary=episode_summary(config, RecordedEpisode.load(file), step=step),
        )
        for file in trajectories
    ]
    return EpisodeJudge(None, None, intent, judge_code, "code", loop).judge(played, step)


@dataclass(frozen=True, slots=True)
class EpisodeJudge:
    """The judges of one run."""

    client: LLMClient | None
    vlm: LLMClient | None
    intent: Intent
    code: str | None
    strategy: JudgeStrategy
    loop: LoopConfig
    amendments: tuple[str, ...] = ()

    def judge(self, episodes: Sequence[JudgedEpisode], step: int | None) -> JudgmentResult:
        """Ask the judges, settle what they differ on, sum up."""
        if self.strategy == "code":
            episodes = self._measure(episodes)
        elif self.strategy == "vlm":
            episodes = [*self._look_at(episodes[:LOOKED_AT]), *episodes[LOOKED_AT:]]
        else:
            episodes = self._measure_and_look(episodes)
        decided = [each for each in self._correct(self._merge_verdicts(episodes)) if each.opinions]
        return verdicts.sum_up(
            decided,
            self.intent.criteria,
            strategy=self.strategy,
            threshold=self.loop.pass_threshold,
            step=step,
        )

    def _measure(self, episodes: Sequence[JudgedEpisode]) -> list[JudgedEpisode]:
        if not self.code:
            return [
                replace(each, code=verdicts.unavailable_opinion("code", NO_CODE))
                for each in episodes
            ]
        opinions = run_judge(
            self.code,
            [each.file for each in episodes],
            [each.summary for each in episodes],
            self.intent.criteria,
        )
        return [replace(e, code=opinion) for e, opinion in zip(episodes, opinions, strict=True)]

    def _measure_and_look(self, episodes: Sequence[JudgedEpisode]) -> list[JudgedEpisode]:
        """Measure all, look at three; at one where a pass is out of reach by code alone.

        That one look is there to find a judge that is broken: only if it leads to another verdict
        on what code found missed in every episode, more episodes are looked at.
        """
        measured = self._measure(episodes)
        if not self._shown.criteria:
            return measured
        chosen = [0, *(1 + i for i in _extremes(measured[1:]))]
        if missed := self._missed_in_all(measured):
            [first] = self._merge_verdicts(self._look_at(measured[:1]), missed)
            measured[0] = first
            scores = first.verdict.criteria if first.verdict else ()
            chosen = [] if self._find_missed(scores) & missed else chosen[1:]
        for i, each in zip(chosen, self._look_at([measured[i] for i in chosen]), strict=True):
            measured[i] = each
        return measured

    @property
    def _shown(self) -> Intent:
        """The criteria that a model looks for: those that decide, and those that only eyes tell.

        What is soft only moves the score, and code measures it.
        """
        criteria = self.intent.criteria
        if self.strategy != "vlm" and self.code:
            criteria = tuple(c for c in criteria if c.hard or c.visual)
        return self.intent.model_copy(update={"criteria": criteria})

    def _find_missed(self, scores: Iterable[CriterionScore]) -> set[str]:
        """Return the ids of the measured hard criteria that these scores do not meet."""
        hard = {criterion.id: criterion for criterion in self.intent.measured if criterion.hard}
        return {
            each.id
            for each in scores
            if each.score is not None
            and each.id in hard
            and not hard[each.id].is_met(each, self.loop.pass_threshold)
        }

    def _missed_in_all(self, episodes: Sequence[JudgedEpisode]) -> set[str]:
        """The hard criteria that code finds missed in every episode; none if it judged not all."""
        opinions = [each.code for each in episodes if each.code and each.code.available]
        if len(opinions) < len(episodes):
            return set()
        return set.intersection(*(self._find_missed(each.criteria) for each in opinions))

    def _look_at(self, episodes: Sequence[JudgedEpisode]) -> list[JudgedEpisode]:
        """Film the episodes and ask the VLM about them; without a VLM, give that as the reason."""
        if not episodes:
            return []
        if self.vlm is None:
            opinion = verdicts.unavailable_opinion("vlm", NO_EYES)
            return [replace(each, vlm=opinion) for each in episodes]
        films = film(
            self.intent.env_id,
            [each.file for each in episodes],
            self.intent.criteria,
            video=takes_video(self.vlm.model),
            initial_frame=self.loop.refined_initial_frame,
            motion_trail=self.loop.motion_trail,
        )
        with ThreadPoolExecutor(LOOKED_AT) as pool:
            seen = list(pool.map(self._ask_vlm, episodes, films))
        return [replace(each, vlm=opinion) for each, opinion in zip(episodes, seen, strict=True)]

    def _ask_vlm(self, episode: JudgedEpisode, filmed: Film) -> JudgeOpinion:
        assert self.vlm is not None
        if filmed.problem:
            return verdicts.unavailable_opinion("vlm", f"no video could be made: {filmed.problem}")
        try:
            recorded = RecordedEpisode.load(episode.file)
            verdict, shown = look(
                self.vlm, self._shown, filmed, recorded, amendments=self.amendments
            )
        except BudgetExhausted:
            raise
        except InferenceError as error:
            if isinstance(error, AuthenticationFailed) and self.strategy == "vlm":
                raise
            return verdicts.unavailable_opinion("vlm", str(error) or type(error).__name__)
        return verdicts.visual_opinion(verdict, self.intent.criteria, shown)

    def _merge_verdicts(
        self, episodes: Sequence[JudgedEpisode], missed: AbstractSet[str] = frozenset()
    ) -> list[JudgedEpisode]:
        """Merge the opinions on each undecided episode, without looking at the other episodes.

        `missed`: what code found missed in all episodes.
        """
        with ThreadPoolExecutor(LOOKED_AT) as pool:  # a synthesis waits for a model
            return list(pool.map(lambda each: self._decide(each, missed), episodes))

    def _decide(self, episode: JudgedEpisode, missed: AbstractSet[str]) -> JudgedEpisode:
        code, vlm = episode.code, episode.vlm
        there = [each for each in episode.opinions if each.available]
        if not there or episode.verdict is not None:
            return episode
        if code is None or vlm is None or len(there) == 1:
            alone = self.strategy != "both"
            return replace(episode, verdict=verdicts.verdict_of_one(there[0], alone=alone))
        # Who settles it is asked only where the answer could change whether the run passes.
        disputed = self._find_missed(code.criteria) ^ self._find_missed(vlm.criteria)
        for opinion in (code, vlm):
            disputed &= {each.id for each in opinion.criteria if each.score is not None}
        if (
            not disputed
            or not missed <= disputed
            or verdicts.agree(code, vlm, self.intent.criteria)
        ):
            return replace(episode, verdict=verdicts.merge_opinions(code, vlm))
        return replace(episode, verdict=self._synthesis(episode, code, vlm))

    def _synthesis(
        self, episode: JudgedEpisode, code: JudgeOpinion, vlm: JudgeOpinion
    ) -> verdicts.Verdict:
        assert self.client is not None
        assert self.vlm is not None
        try:
            return synthesise(
                self.client,
                self.vlm,
                self._shown,
                episode,
                amendments=self.amendments,
            )
        except BudgetExhausted:
            raise
        except InferenceError as error:
            verdict = verdicts.merge_opinions(
                code, vlm, confidence=verdicts.CONFIDENCE["undecided"]
            )
            note = f"The judges differ, and it could not be settled ({error})."
            return replace(verdict, diagnosis=f"{verdict.diagnosis} {note}".strip())

    def _correct(self, episodes: Sequence[JudgedEpisode]) -> list[JudgedEpisode]:
        """Correct the scores of measured episodes by what the VLM saw of others."""
        pairs = [
            (e.code, e.verdict)
            for e in episodes
            if e.code and e.verdict and e.code.available and e.vlm and e.vlm.available
        ]
        if not pairs:
            return list(episodes)
        by, seen = verdicts.mean_shifts(pairs), verdicts.overruling_evidence(pairs)
        sure = sum(verdict.confidence for _, verdict in pairs) / len(pairs)
        return [
            replace(e, verdict=replace(verdicts.apply_shifts(e.verdict, by, seen), confidence=sure))
            if e.verdict is not None and e.vlm is None
            else e
            for e in episodes
        ]


def _extremes(episodes: Sequence[JudgedEpisode]) -> list[int]:
    """The places of the episodes to look at besides the first: a poor one and a good one."""
    judged = [i for i, e in enumerate(episodes) if e.code and e.code.score is not None]
    if not judged:
        return list(range(min(LOOKED_AT - 1, len(episodes))))
    scores = [e.code.score for e in episodes if e.code and e.code.score is not None]
    by_label = representative_episodes(scores)
    return sorted({judged[by_label[label]] for label in ("p10", "p90")})
