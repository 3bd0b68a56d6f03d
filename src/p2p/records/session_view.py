"""A session as its files show it: one reading for agents, loop, terminal, API and benchmark.

`SessionView(record)` has `iterations`, each an `IterationView` with `runs`, each a `RunView`;
`p2p.records.summaries` has what of them is listed and sent. What
is absent or cannot be read is None or empty, so that a session can be looked at in any state;
lineage.json alone must be whole if it is there. A file is read when it is first asked for and kept:
who wants to know what has changed makes a new view. Nothing here writes.

The process that runs a session tells nobody what it does; it leaves a file after each phase. So
the terminal, the dashboard and a second terminal all see the same, also after a restart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from p2p.analysis import number
from p2p.analysis.training_dynamics import TrainingDynamics, analyze_training
from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import (
    AuthoredCode,
    EntityMetadata,
    EvalResult,
    Intent,
    IterationAggregation,
    JudgmentResult,
    LineageData,
    Record,
    Revision,
    RewardSpec,
    SessionConfig,
    SessionResult,
    StatusLiteral,
    TrainSummary,
)
from p2p.event_log import last_event
from p2p.files import is_session, read_model
from p2p.records.folder import EVALUATION_VIDEO
from p2p.records.iteration_record import RUN_NAME, IterationRecord, SessionRecord, step_of
from p2p.records.lineage import Lineage
from p2p.records.loop_files import (
    BestRun,
    CandidateRow,
    IterationPlan,
    RewardSearch,
    SteeringTaken,
    candidate_rows,
)
from p2p.records.statuses import ENDED, UNFINISHED, Outcome
from p2p.records.upstream import UpstreamHistory, read_judgment

Lines = list[dict[str, Any]]
Phase = Literal["intent", "authoring", "training", "judging", "confirming", "revising", "ended"]

WAITS = ("llm.wait", "cores.wait")
"""Events whose `reason` says what a session waits for, until the next event."""
SETTLED_SHARE, SETTLED_S = 0.03, 10.0
"""Of a run's steps, or seconds: before that, its rate is one of starting and compiling."""


class Video(Record):
    """A video of an evaluation episode."""

    run_id: str
    name: str
    step: int | None = None
    label: str = ""
    """p10, median or p90."""
    url: str
    drawn: bool = True
    """Else it is drawn when its address is asked for."""
    iteration_id: str = ""

    @property
    def path(self) -> Path:
        """Below the folder of its session."""
        run = Path(*dict.fromkeys((self.iteration_id, self.run_id)))
        return run / "videos" / self.name

    @classmethod
    def at(cls, path: Path) -> Video:
        """The video of a run, by its path; an iteration of `p2p train` is a run itself."""
        run = path.parent.parent
        iteration = run if is_session(run.parent) else run.parent
        session = SessionRecord(iteration.parent).api_id
        match = EVALUATION_VIDEO.fullmatch(path.name)
        return cls(
            run_id=run.name,
            iteration_id=iteration.name,
            name=path.name,
            step=int(match[1]) if match else None,
            label=match[2] if match else "",
            url=f"/api/sessions/{session}/iterations/{iteration.name}/runs/{run.name}/videos/{path.name}",
            drawn=path.is_file(),
        )


@dataclass(frozen=True)
class RunView:
    """One training run."""

    record: IterationRecord

    @property
    def run_id(self) -> str:
        return self.record.iteration_id

    @property
    def config_id(self) -> str:
        """The configuration in its name; empty for a run of `p2p train`."""
        name = RUN_NAME.fullmatch(self.run_id)
        return name["config"] if name else ""

    @cached_property
    def status(self) -> StatusLiteral:
        return self.record.derive_status()

    @cached_property
    def error(self) -> str:
        """Why it failed; empty if it did not."""
        return _error(self.record)

    @cached_property
    def config(self) -> TrainConfig | None:
        return self.record.config.read()

    @property
    def seed(self) -> int | None:
        return self.config.seed if self.config else None

    @cached_property
    def summary(self) -> TrainSummary | None:
        return self.record.read_summary()

    @property
    def final_return(self) -> float | None:
        return self.summary.final_episodic_return if self.summary else None

    @property
    def mean_return(self) -> float | None:
        """Of the selected checkpoint's evaluation; None until it is complete."""
        points = self.summary.checkpoints if self.summary else ()
        step = self.summary.selected_step if self.summary else None
        return next((point.mean_return for point in points if point.step == step), None)

    @property
    def total_timesteps(self) -> int:
        return self.config.total_timesteps if self.config else 0

    @cached_property
    def progress(self) -> float:
        """The share that is done, 0 to 1."""
        return self.record.compute_progress() or 0.0

    @property
    def seconds_per_step(self) -> float | None:
        """Of its training so far, evaluations included; None before it has settled."""
        last = self._scalars[0][-1] if self._scalars[0] else {}
        step, seconds = step_of(last) or 0, number(last.get("elapsed_time"))
        if step < SETTLED_SHARE * self.total_timesteps and seconds < SETTLED_S:
            return None
        return seconds / step if step and seconds > 0 else None

    @cached_property
    def judgment(self) -> JudgmentResult | None:
        """Of the checkpoint that stands for the run."""
        return read_judgment(self.record.judgment_path)

    @property
    def score(self) -> float | None:
        """By the judges; None: not judged."""
        return self.judgment.intent_score if self.judgment else None

    @property
    def checkpoint_scores(self) -> dict[int, float | None]:
        """Of the checkpoints judged on the way, by step."""
        judgments = self.record.read_streaming().items()
        return {step: judgment.intent_score for step, judgment in judgments}

    @property
    def videos(self) -> tuple[Video, ...]:
        names = self.record.video_filenames()
        return tuple(Video.at(self.record.videos_dir / name) for name in names)

    @property
    def evaluations(self) -> tuple[EvalResult, ...]:
        """All of them but those that are none of ours."""
        results = []
        for line in self._scalars[1]:
            with suppress(ValidationError):
                results.append(EvalResult.model_validate(line))
        return tuple(results)

    @cached_property
    def checkpoint_judgments(self) -> dict[int, JudgmentResult]:
        """All judged checkpoints by step, `judgment` among them where it names its step."""
        judgments = self.record.read_streaming()
        if self.judgment is not None and self.judgment.step is not None:
            judgments[self.judgment.step] = self.judgment
        return dict(sorted(judgments.items()))

    @property
    def curve(self) -> tuple[tuple[int, float], ...]:
        """(step, mean return) of every evaluation."""
        points = ((step_of(line), line.get("mean_return")) for line in self._scalars[1])
        return tuple(
            (step, float(value))
            for step, value in points
            if step is not None and isinstance(value, int | float)
        )

    @property
    def training_returns(self) -> tuple[float, ...]:
        """Mean returns of the training episodes, one for each update that has one."""
        lines = self._scalars[0]
        return tuple(line["episodic_return"] for line in lines if "episodic_return" in line)

    @property
    def training_curve(self) -> tuple[tuple[int, float], ...]:
        """(step, mean return) of the training episodes, whose actions are sampled."""
        points = ((step_of(line), line.get("episodic_return")) for line in self._scalars[0])
        return tuple(
            (step, float(value))
            for step, value in points
            if step is not None and isinstance(value, int | float) and math.isfinite(value)
        )

    @property
    def term_shares(self) -> dict[str, float]:
        """Of each reward term in the sum of absolute terms, in the last evaluation."""
        sizes = {name: abs(mean) for name, mean in self.term_means.items()}
        total = sum(sizes.values())
        return {name: size / total if total > 0 else 0.0 for name, size in sizes.items()}

    @property
    def term_means(self) -> dict[str, float]:
        """Of each reward term per step, in the last evaluation."""
        line = self._scalars[1][-1] if self._scalars[1] else {}
        terms, length = line.get("reward_terms"), number(line.get("episode_length"))
        terms = terms if isinstance(terms, Mapping) and length > 0 else {}
        means = {name: number(value) / length for name, value in terms.items()}
        return {name: mean for name, mean in means.items() if math.isfinite(mean)}

    def dynamics(self) -> TrainingDynamics:
        """Return how PPO fared."""
        return analyze_training(self._scalars[0])

    @cached_property
    def _scalars(self) -> tuple[Lines, Lines]:
        return self.record.parse_scalars()


def training_left(runs: Sequence[RunView], search: RewardSearch | None = None) -> float | None:
    """Seconds until all are trained, by their own rates so far; None while none has a rate.

    Runs that wait are taken to be as fast as the others, as many at a time as there are now. Of a
    search, the runs are those of its candidates, most of which end early.
    """
    active = [run for run in runs if run.status in UNFINISHED]
    if not active:
        return None
    rates = [rate for run in runs if (rate := run.seconds_per_step) is not None]
    if not rates:
        return None
    usual = sum(rates) / len(rates)
    if search is not None and not search.winner:
        reached = {run.run_id: round(run.progress * run.total_timesteps) for run in active}
        at_once = max(1, sum(run.status == "running" for run in active))
        return search.steps_left(reached) * usual / at_once
    left = [
        (1 - run.progress) * run.total_timesteps * (run.seconds_per_step or usual) for run in active
    ]
    at_once = max(1, sum(run.status == "running" for run in active))
    return max(*left, sum(left) / at_once)


@dataclass(frozen=True)
class IterationView:
    """One iteration: a reward, and the runs that were trained with it; or a single run."""

    record: IterationRecord
    number: int
    train: TrainConfig
    """The session's own, where the iteration's cannot be read."""
    remembered: JudgmentResult | None = None
    """Its verdict by the history of a session that is not ours."""

    @property
    def iteration_id(self) -> str:
        return self.record.iteration_id

    @property
    def session_id(self) -> str:
        """Of the session in the API; of an iteration or a run of one."""
        parent = self.record.path.parent
        return SessionRecord(parent if is_session(parent) else parent.parent).api_id

    @cached_property
    def status(self) -> StatusLiteral:
        return self.record.derive_status()

    @cached_property
    def progress(self) -> float | None:
        """The share of the training steps that is done; None where nothing says how many."""
        return self.record.compute_progress()

    @property
    def seconds_left(self) -> float | None:
        """Until all its runs are trained, at their pace so far; None: it is not training."""
        return training_left(self.runs, self.search)

    @cached_property
    def plan(self) -> IterationPlan | None:
        return self.record.plan.read()

    @cached_property
    def reward_spec(self) -> RewardSpec:
        return self.record.read_reward_spec()

    @cached_property
    def reward(self) -> AuthoredCode | None:
        return self.record.reward.read()

    @property
    def reward_code(self) -> str:
        """reward_fn.py, or what was drafted in vain; empty if there is none."""
        return self.record.read_reward_source() or (self.reward.code if self.reward else "")

    @property
    def config(self) -> TrainConfig:
        """The base of all its runs, before what the user's configurations change."""
        if self.plan:
            return self.plan.train
        return (self.best_run.config if self.best_run else None) or self.train

    @cached_property
    def aggregation(self) -> IterationAggregation | None:
        """Configurations x seeds, compared."""
        return self.record.aggregation.read()

    @cached_property
    def search(self) -> RewardSearch | None:
        """How it chose its reward; None where there was one."""
        return self.record.search.read()

    @property
    def choice(self) -> str:
        """Why it chose the reward it did; empty where there was one."""
        return self.search.reason if self.search else ""

    @cached_property
    def candidates(self) -> tuple[CandidateRow, ...]:
        """The rewards it chose from; none where there was one."""
        return candidate_rows(self.record.candidates.read(), self.search)

    @cached_property
    def runs(self) -> tuple[RunView, ...]:
        """All its runs, by configuration and seed."""
        records = self.record.runs()
        if not records and self.record.config.exists():
            records = [self.record]  # an iteration of `p2p train` is a run itself
        return tuple(RunView(record) for record in records)

    @property
    def listed_runs(self) -> tuple[RunView, ...]:
        """Its runs; before there are any, itself."""
        return self.runs or (RunView(self.record),)

    @property
    def videos(self) -> tuple[Video, ...]:
        return tuple(video for run in self.listed_runs for video in run.videos)

    @property
    def run_config(self) -> TrainConfig | None:
        """Of the run that stands for it, or else what its runs begin from."""
        own = self.best_run.config if self.best_run else None
        return own or (self.plan.train if self.plan else None)

    @property
    def env_id(self) -> str:
        if self.run_config is not None:
            return self.run_config.env_id
        theirs = self.best_run.record.read_config() if self.best_run else None
        return str((theirs or {}).get("env_id", ""))  # of another program

    @property
    def eval_results(self) -> tuple[EvalResult, ...]:
        return self.best_run.evaluations if self.best_run else ()

    @cached_property
    def best(self) -> BestRun | None:
        return self.record.best_run.read()

    @cached_property
    def best_run(self) -> RunView | None:
        """The run that stands for the iteration: by best_run.json, or else by its return."""
        aggregation = self.aggregation
        run_id = self.best.run_id if self.best else aggregation and aggregation.best_run_id
        chosen = (run for run in self.runs if run.run_id == run_id)
        return next(chosen, next(iter(self.runs), None))

    @cached_property
    def seeds_passed(self) -> tuple[int, int, int]:
        """How many training seeds of its best configuration passed, were judged, were trained.

        What still trains when a checkpoint of another seed holds is not judged.
        """
        config_id = self.best_run.config_id if self.best_run else ""
        configs = self.aggregation.configs if self.aggregation else ()
        best = [each for each in configs if each.config_id == config_id]
        own = {run.run_id for each in best for run in each.per_seed}
        runs = [run for run in self.runs if run.run_id in own]
        judged = [run.judgment for run in runs if run.judgment is not None]
        return sum(judgment.passed for judgment in judged), len(judged), len(runs)

    @cached_property
    def judgment(self) -> JudgmentResult | None:
        """The verdict: of its best run, with the confirmation and the user's score counted in."""
        return read_judgment(self.record.judgment_path) or self.remembered

    @cached_property
    def confirmation(self) -> JudgmentResult | None:
        return self.record.confirmation.read()

    @property
    def early_judge_error(self) -> str:
        """What kept a checkpoint from being judged while training went on; mostly empty."""
        tries = self.record.confirmation_tries.read()
        return tries.error if tries else ""

    @cached_property
    def revision(self) -> Revision | None:
        """What the next iteration does differently."""
        return self.record.revision.read()

    @cached_property
    def feedback(self) -> SteeringTaken | None:
        """The feedback taken up after this iteration."""
        return self.record.steering.read()

    @property
    def steering(self) -> SteeringTaken:
        """The same, empty where there is none."""
        return self.feedback or SteeringTaken()

    @property
    def passed(self) -> bool:
        return self.judgment is not None and self.judgment.passed

    @property
    def score(self) -> float | None:
        """The verdict's; None: not judged."""
        return self.judgment.intent_score if self.judgment else None

    @property
    def training_error(self) -> str:
        """Why no run could be trained; empty if one could, or nobody tried yet."""
        if self.reward is not None and not self.reward.valid:
            return f"the reward could not be made to run: {self.reward.last_problem}"
        if self.aggregation is None or self.aggregation.best_run_id is not None:
            return ""
        runs = [run for config in self.aggregation.configs for run in config.per_seed]
        reasons = dict.fromkeys(run.error or f"the run is {run.status}" for run in runs)
        return "; ".join(reasons) or "no run was trained"

    @property
    def error(self) -> str:
        """Of its reward or its runs; empty if one of them came to its end."""
        if any(run.status == "completed" for run in self.runs):
            return ""
        errors = [self.training_error, _error(self.record), *(run.error for run in self.runs)]
        return next((error for error in errors if error), "")


_STATUS_OF_OUTCOME: dict[Outcome, StatusLiteral] = {
    "unverified": "unverified",
    "not_passed": "max_iterations",
}


@dataclass(frozen=True)
class SessionView:
    """A session, finished or not.

    Args:
        record: its folder.
        ended: how it ended, where that could not be written down: on a full disk.
    """

    record: SessionRecord
    ended: SessionResult | None = None

    @property
    def session_id(self) -> str:
        return self.record.api_id

    @cached_property
    def metadata(self) -> EntityMetadata:
        """What people attached to it."""
        return self.record.read_metadata()

    @cached_property
    def config(self) -> SessionConfig | None:
        """What was asked for."""
        return self.record.config.read()

    @property
    def created_at(self) -> datetime:
        return self.config.created_at if self.config else self._touched

    @property
    def updated_at(self) -> datetime:
        status = self.record.read_status()
        return status.updated_at if status else self._touched

    @property
    def _touched(self) -> datetime:
        try:
            return datetime.fromtimestamp(self.record.path.stat().st_mtime, UTC)
        except FileNotFoundError:  # removed at this moment
            return datetime.now(UTC)

    @cached_property
    def history(self) -> UpstreamHistory | None:
        """Of a session of the public Prompt2Policy, which has no session.json."""
        if self.record.config.exists():
            return None
        return read_model(self.record.history_path, UpstreamHistory)

    @property
    def loop(self) -> LoopConfig:
        return self.config.loop if self.config else LoopConfig()

    @cached_property
    def intent(self) -> Intent | None:
        """The rubric; None while there is none."""
        return self.record.intent.read()

    @property
    def unchecked_words(self) -> tuple[str, ...]:
        """What the prompt asks and no criterion measures; a pass says nothing about it."""
        return self.intent.unused_words if self.intent else ()

    @cached_property
    def judge(self) -> AuthoredCode | None:
        return self.record.judge.read()

    @property
    def prompt(self) -> str:
        asked = self.config or self.intent or self.history
        return asked.prompt if asked else ""

    @property
    def env_id(self) -> str:
        """The environment; empty while none is chosen."""
        asked = self.intent or self.config or self.history
        if asked is not None and asked.env_id:
            return asked.env_id
        configs = (record.read_config() for record in self.record.iteration_records())
        return str((next(configs, None) or {}).get("env_id", ""))  # of `p2p train`

    @property
    def env_reason(self) -> str:
        """Why this environment was chosen; empty where the user has named it."""
        return self.config.env_reason if self.config else ""

    @cached_property
    def status(self) -> StatusLiteral:
        if self.ended:
            return self.ended.status
        if self.history is not None and not self.record.status_path.exists():
            return self.history.status
        status, best = self.record.derive_status(), self.best
        if status == "passed" and best is not None and best.judgment is not None:
            # Version 0.1.0 passed what is now unverified, or no pass.
            return _STATUS_OF_OUTCOME.get(self.outcome_of(best), status)
        return status

    def outcome_of(self, iteration: IterationView) -> Outcome:
        """`passed`, `unverified` or `not_passed`.

        Words that nothing measures leave a pass unverified, unless the user's own score made it.
        """
        if not iteration.passed:
            return "not_passed"
        by_user = iteration.steering.score is not None
        return "unverified" if self.unchecked_words and not by_user else "passed"

    @property
    def outcome(self) -> Outcome:
        """Of its best iteration."""
        return self.outcome_of(self.best) if self.best else "not_run"

    @cached_property
    def error(self) -> str:
        """Why it ended early, or cannot be read, as one of a newer version; else empty."""
        if self.ended:
            return self.ended.message
        return _error(self.record) or "; ".join(self.record.config.problems())

    @cached_property
    def result(self) -> SessionResult | None:
        theirs = self.history.result() if self.history else None
        return self.record.result.read() or self.ended or theirs

    @property
    def phase(self) -> Phase:
        if self.status in ENDED:
            return "ended"
        if self.intent is None:
            return "intent"
        last = self.current
        if last is None or last.reward is None:
            return "revising" if len(self.iterations) > 1 else "authoring"
        if last.judgment is None:
            trained = last.runs and all(run.status in ENDED for run in last.runs)
            return "judging" if trained else "training"
        refuted = last.confirmation is not None and not last.confirmation.passed
        # What follows a pass that holds is the end.
        return "confirming" if last.judgment.passed and not refuted else "revising"

    @property
    def waiting(self) -> str:
        """Why nothing happens just now: a provider asks to come back later, cores are held."""
        last = last_event(self.record.events_path) if self.status == "running" else None
        return str(last.data.get("reason", "")) if last and last.event in WAITS else ""

    @property
    def drawing(self) -> str:
        """The video that the session draws after its verdict; empty: none just now."""
        last = last_event(self.record.events_path) if self.phase == "ended" else None
        return str(last.data.get("video", "")) if last and last.event == "draw.start" else ""

    @cached_property
    def iterations(self) -> dict[int, IterationView]:
        train, judgments = self.loop.train, self.history.judgments if self.history else {}
        return {
            record.number: IterationView(record, record.number, train, judgments.get(record.number))
            for record in self.record.iteration_records()
            if record.number is not None
        }

    @property
    def iteration_count(self) -> int:
        return len(self.record.iteration_records())

    @property
    def video(self) -> Video | None:
        """Of those that are drawn: of the best policy, else of the newest checkpoint."""
        best = (self.record.path / path for path in (self.result.videos if self.result else ()))
        if there := [Video.at(path) for path in best if path.is_file()]:
            return _choose_video(there)
        for record in reversed(self.record.iteration_records()):
            videos = IterationView(record, 0, TrainConfig()).videos
            if drawn := [video for video in videos if video.drawn]:
                return _choose_video(drawn)
        return None

    @property
    def current(self) -> IterationView | None:
        return next(reversed(self.iterations.values()), None)

    @property
    def best(self) -> IterationView | None:
        """The iteration that stands for it: by its result, else the last one."""
        number = self.result.best_iteration if self.result else None
        return self.iterations.get(number) if number is not None else self.current

    @property
    def lineage_data(self) -> LineageData | None:
        """lineage.json; None also where it cannot be read."""
        return self.record.lineage.read()

    @cached_property
    def lineage(self) -> Lineage:
        """The tree of iterations; raises UnreadableError if lineage.json is torn or foreign."""
        return Lineage.load(self.record.lineage.path)

    @property
    def best_score(self) -> float | None:
        """The best score, also of a session that was killed; None: nothing is judged."""
        if self.result is not None and self.result.status != "running":
            return self.result.score
        scores = (iteration.score for iteration in self.iterations.values())
        return max((score for score in scores if score is not None), default=None)

    # --- feedback ---------------------------------------------------------------------------------

    @cached_property
    def steering(self) -> tuple[SteeringTaken, ...]:
        """The feedback taken up: before the first iteration, then after each of them."""
        first = self.record.steering.read() or SteeringTaken()
        return (first, *(iteration.steering for iteration in self.iterations.values()))

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the user said since an agent has last made a revision."""
        remarks = list(self.steering[0].remarks)
        for iteration in self.iterations.values():
            remarks += iteration.steering.remarks
            revision = iteration.revision
            if revision.author != "user" if revision else iteration != self.current:
                remarks = []
        return tuple(remarks)

    @property
    def fixed(self) -> frozenset[str]:
        """TrainConfig fields that no revision moves: by the user or by all configurations."""
        everywhere = set.intersection(*(set(config.params) for config in self.loop.configs))
        changed = {name for taken in self.steering for name in taken.hp_changes}
        return frozenset({*self.loop.fixed, *everywhere, *changed})


def _choose_video(videos: Iterable[Video]) -> Video:
    """Choose the video of the last step, of median episodes if there are any."""
    return max(videos, key=lambda video: (video.label == "median", video.step or 0))


def _error(record: IterationRecord | SessionRecord) -> str:
    status = record.read_status()
    return (status.error if status else None) or ""
