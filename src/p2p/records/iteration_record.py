"""The folders of an iteration and of a session, typed.

An iteration is a single training run (`iter_N/config.json`), or a loop iteration that holds many
(`iter_N/<config>_seed_<seed>/config.json`). Readers give None, or the empty value, for what is
absent or unreadable; `validate` says what is wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from p2p.config import TrainConfig
from p2p.contracts import (
    AuthoredCode,
    EntityMetadata,
    Intent,
    IterationAggregation,
    JudgmentResult,
    LineageData,
    Revision,
    RewardSpec,
    SessionResult,
    StatusData,
    StatusLiteral,
    TrainSummary,
)
from p2p.files import (
    UnreadableError,
    is_free,
    lines_backward,
    load_model,
    locked,
    parse_line,
    read_lines,
    read_model,
    read_object,
    read_text,
    save_model,
    write_json,
    write_text,
)
from p2p.records.iteration_paths import IterationPaths, names, step_of
from p2p.records.loop_files import (
    BestRun,
    ClockReading,
    IterationPlan,
    SessionConfig,
    SteeringTaken,
)
from p2p.records.record_checks import iteration_problems, session_problems
from p2p.records.status_file import StatusFile
from p2p.settings import check_name

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from pydantic import BaseModel

    from p2p.contracts import RunRecord

_RUN = re.compile(r"(?P<config>.+)_seed_(?P<seed>\d+)")
_ITERATION = re.compile(r"iter_(\d+)")
SILENT_S = 20.0
"""A session that gave no sign for so long, and whose lock nobody holds, is gone."""
_ENDED = frozenset({"completed", "passed", "failed", "error", "cancelled", "stale"})


class _WithStatus:
    """What iterations and sessions have in common: a status.json."""

    @property
    def status_path(self) -> Path:
        """status.json."""
        raise NotImplementedError

    def set_status(self, status: StatusLiteral, error: str | None = None) -> None:
        """Write status.json. A cancel stands: `set_status_if` alone can take it back."""
        StatusFile(self.status_path).set(status, error)

    def set_status_if(
        self, status: StatusLiteral, expected: Collection[StatusLiteral], error: str | None = None
    ) -> bool:
        """Write the status only if it now is one of `expected` (no file: pending); says if so."""
        return StatusFile(self.status_path).set_if(status, expected, error)

    def read_status(self) -> StatusData | None:
        """Read status.json, as it was written."""
        return StatusFile(self.status_path).read()

    def touch_heartbeat(self) -> None:
        """Say that the work goes on."""
        StatusFile(self.status_path).touch()


class IterationRecord(IterationPaths, _WithStatus):
    """runs/session_xxx/iter_N/, or one run inside a loop iteration."""

    # --- reading ---------------------------------------------------------------------------------

    def read_config(self) -> dict[str, Any] | None:
        """config.json as it stands there."""
        return read_object(self.config_path)

    def read_train_config(self) -> TrainConfig | None:
        """config.json, checked."""
        return read_model(self.config_path, TrainConfig)

    def read_summary(self) -> TrainSummary | None:
        """How the training ended."""
        return read_model(self.summary_path, TrainSummary)

    def read_reward_source(self) -> str:
        """The reward's source, or ""."""
        return read_text(self.reward_fn_path) or ""

    def read_reward_spec(self) -> RewardSpec:
        """The reward's description, or an empty one."""
        return read_model(self.reward_spec_path, RewardSpec) or RewardSpec()

    def read_judgment(self) -> JudgmentResult | None:
        """What the judges made of it."""
        return read_model(self.judgment_path, JudgmentResult)

    def read_aggregation(self) -> IterationAggregation | None:
        """The runs of a loop iteration, compared."""
        return read_model(self.aggregation_path, IterationAggregation)

    def read_plan(self) -> IterationPlan | None:
        """What a loop iteration trains."""
        return read_model(self.plan_path, IterationPlan)

    def read_reward(self) -> AuthoredCode | None:
        """The reward of a loop iteration, and how it came to be."""
        return read_model(self.reward_path, AuthoredCode)

    def read_best_run(self) -> BestRun | None:
        """The run that stands for a loop iteration."""
        return read_model(self.best_run_path, BestRun)

    def read_confirmation(self) -> JudgmentResult | None:
        """What the judges made of the best run on fresh starts."""
        return read_model(self.confirmation_path, JudgmentResult)

    def read_revision(self) -> Revision | None:
        """What the next iteration does differently."""
        return read_model(self.revision_path, Revision)

    def read_steering(self) -> SteeringTaken | None:
        """The orders taken after this iteration."""
        return read_model(self.steering_path, SteeringTaken)

    def read_streaming(self) -> dict[int, JudgmentResult]:
        """What the code judge made of early checkpoints, by step."""
        found = (
            (int(name.removesuffix(".json")), read_model(self.streaming_dir / name, JudgmentResult))
            for name in names(self.streaming_dir)
            if name.removesuffix(".json").isdecimal()
        )
        return dict(sorted((step, judgment) for step, judgment in found if judgment is not None))

    @property
    def number(self) -> int | None:
        """N of iter_N; None for another name."""
        match = _ITERATION.fullmatch(self.iteration_id)
        return int(match[1]) if match else None

    def video_filenames(self) -> list[str]:
        """The videos' names, by step."""
        found = (n for n in names(self.videos_dir) if n.endswith(".mp4") and n[0] != ".")
        return sorted(found, key=_natural)

    def parse_scalars(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The training lines and the evaluation lines of scalars.jsonl, by step.

        A resumed run repeats the steps since its last checkpoint: its later line counts.
        """
        training: list[dict[str, Any]] = []
        evaluation: list[dict[str, Any]] = []
        for line in read_lines(self.scalars_path):
            step, kind = step_of(line), line.get("type", "train")
            if step is None or kind not in {"train", "eval"}:
                continue
            kept = evaluation if kind == "eval" else training
            while kept and kept[-1]["global_step"] >= step:
                kept.pop()
            kept.append(line)
        return training, evaluation

    def runs(self) -> list[IterationRecord]:
        """The runs of a loop iteration, by configuration and seed."""
        found = sorted((n for n in names(self.path) if _RUN.fullmatch(n)), key=_natural)
        return [IterationRecord(self.path / n) for n in found if (self.path / n).is_dir()]

    def derive_status(self) -> StatusLiteral:
        """How it stands, also where status.json is missing or its process is gone."""
        if not self.path.is_dir():
            return "unknown"
        if self.status_path.exists():
            return StatusFile(self.status_path).derive()
        if runs := self.runs():
            return _combined([run.derive_status() for run in runs])
        if self.read_summary() is not None:
            return "completed"
        # Metrics without a status: something ran, and nobody said how it went.
        return "unknown" if self.scalars_path.exists() else "pending"

    def compute_progress(self) -> float | None:
        """The share of the training steps that is done; None where no configuration says how many.

        For a loop iteration the mean over its runs, where a run that has ended counts as done.
        """
        if self.config_path.exists() or not (runs := self.runs()):
            return self._own_progress()
        done = (
            1.0 if run.derive_status() in _ENDED else run.compute_progress() or 0.0 for run in runs
        )
        return sum(done) / len(runs)

    def _own_progress(self) -> float | None:
        config = self.read_train_config()
        if config is None:
            return None
        if StatusFile(self.status_path).stated() == "completed":
            return 1.0
        for line in lines_backward(self.scalars_path):
            step = step_of(parse_line(line) or {})
            if step is not None:
                return min(step / config.total_timesteps, 1.0)
        return 0.0

    def validate(self) -> list[str]:
        """What is missing or invalid, one line each; empty if all is well. Never raises."""
        return iteration_problems(
            self,
            done=self.derive_status() == "completed",
            evaluated=[step_of(line) for line in self.parse_scalars()[1]],
            runs={run.iteration_id: run.validate() for run in self.runs()},
        )

    # --- writing ---------------------------------------------------------------------------------

    def save_config(self, config: TrainConfig) -> None:
        """Write config.json."""
        write_text(self.config_path, config.to_json() + "\n")

    def save_reward_source(self, source: str) -> None:
        """Write reward_fn.py."""
        write_text(self.reward_fn_path, source)

    def save_reward_spec(self, spec: RewardSpec) -> None:
        """Write reward_spec.json."""
        save_model(self.reward_spec_path, spec)

    def save_summary(self, summary: TrainSummary) -> None:
        """Write summary.json."""
        save_model(self.summary_path, summary)

    def save_judgment(self, judgment: JudgmentResult) -> None:
        """Write judgment.json."""
        save_model(self.judgment_path, judgment)

    def save_revised_reward(self, code: str) -> None:
        """Write reward_fn_revised.py."""
        write_text(self.revised_reward_path, code)

    def save_aggregation(self, aggregation: IterationAggregation) -> None:
        """Write aggregation.json."""
        save_model(self.aggregation_path, aggregation)


@dataclass(frozen=True)
class SessionRecord(_WithStatus):
    """runs/session_xxx/."""

    path: Path

    @property
    def session_id(self) -> str:
        """The name of the folder."""
        return self.path.name

    @property
    def status_path(self) -> Path:
        """status.json."""
        return self.path / "status.json"

    @property
    def history_path(self) -> Path:
        """loop_history.json."""
        return self.path / "loop_history.json"

    @property
    def metadata_path(self) -> Path:
        """metadata.json."""
        return self.path / "metadata.json"

    @property
    def analysis_path(self) -> Path:
        """analysis.json."""
        return self.path / "analysis.json"

    @property
    def events_path(self) -> Path:
        """events.jsonl."""
        return self.path / "events.jsonl"

    @property
    def session_path(self) -> Path:
        """session.json."""
        return self.path / "session.json"

    @property
    def intent_path(self) -> Path:
        """intent.json: the rubric in force."""
        return self.path / "intent.json"

    @property
    def judge_path(self) -> Path:
        """judge.json: the code judge in force, and how it came to be."""
        return self.path / "judge.json"

    @property
    def judge_fn_path(self) -> Path:
        """judge_fn.py: its source."""
        return self.path / "judge_fn.py"

    @property
    def lineage_path(self) -> Path:
        """lineage.json."""
        return self.path / "lineage.json"

    @property
    def result_path(self) -> Path:
        """result.json."""
        return self.path / "result.json"

    @property
    def clock_path(self) -> Path:
        """clock.json: how long it has been worked on."""
        return self.path / "clock.json"

    @property
    def report_path(self) -> Path:
        """report.md."""
        return self.path / "report.md"

    @property
    def steering_dir(self) -> Path:
        """steering/, with a file for each order."""
        return self.path / "steering"

    @property
    def steering_path(self) -> Path:
        """steering.json: the orders taken before the first iteration."""
        return self.path / "steering.json"

    @property
    def llm_dir(self) -> Path:
        """llm/, with a file for each exchange with a model."""
        return self.path / "llm"

    @property
    def lock_path(self) -> Path:
        """session.lock, held by the process that works on the session."""
        return self.path / "session.lock"

    def read_session(self) -> SessionConfig | None:
        """What was asked for."""
        return read_model(self.session_path, SessionConfig)

    def read_intent(self) -> Intent | None:
        """The rubric in force."""
        return read_model(self.intent_path, Intent)

    def read_judge(self) -> AuthoredCode | None:
        """The code judge in force."""
        return read_model(self.judge_path, AuthoredCode)

    def read_lineage(self) -> LineageData | None:
        """The tree of iterations and what was learnt."""
        return read_model(self.lineage_path, LineageData)

    def read_result(self) -> SessionResult | None:
        """How the session stands, or ended."""
        return read_model(self.result_path, SessionResult)

    def read_steering(self) -> SteeringTaken | None:
        """The orders taken before the first iteration."""
        return read_model(self.steering_path, SteeringTaken)

    def iteration(self, number: int) -> IterationRecord:
        """iter_N, whether it is there or not."""
        return IterationRecord(self.path / f"iter_{number}")

    def derive_status(self) -> StatusLiteral:
        """How the session stands, seeing through a `running` whose process is gone.

        Whoever works on a session of the loop holds its lock and gives a sign every few seconds, so
        that a killed one is known at once.
        """
        file = StatusFile(self.status_path)
        status = file.derive("pending" if self.path.is_dir() else "unknown")
        gone = status == "running" and file.silent_s() > SILENT_S and is_free(self.lock_path)
        return "stale" if gone else status

    def save_history(self, data: dict[str, Any]) -> None:
        """Write loop_history.json."""
        write_json(self.history_path, data)

    def read_history(self) -> dict[str, Any] | None:
        """Read loop_history.json."""
        return read_object(self.history_path)

    def read_metadata(self) -> EntityMetadata:
        """What people attached to the session; empty if nothing or nothing readable."""
        return read_model(self.metadata_path, EntityMetadata) or EntityMetadata()

    def save_metadata(self, data: EntityMetadata) -> None:
        """Write metadata.json."""
        save_model(self.metadata_path, data)

    def update_metadata(self, **kwargs: Any) -> EntityMetadata:
        """Change some of the metadata, in one step for all writers; raises ValueError if wrong.

        A metadata.json that cannot be read is kept beside the new one.
        """
        with locked(self.metadata_path.with_suffix(".lock")):
            try:
                old = load_model(self.metadata_path, EntityMetadata) or EntityMetadata()
            except UnreadableError:
                self.metadata_path.replace(self.metadata_path.with_suffix(".unreadable"))
                old = EntityMetadata()
            new = EntityMetadata.model_validate({**old.model_dump(), **kwargs})
            self.save_metadata(new)
        return new

    def save_analysis(self, data: dict[str, Any]) -> None:
        """Write analysis.json."""
        write_json(self.analysis_path, data)

    def read_analysis(self) -> dict[str, Any] | None:
        """Read analysis.json."""
        return read_object(self.analysis_path)

    def iteration_records(self) -> list[IterationRecord]:
        """All iterations of either layout: iter_1, iter_2, ..., then those with other names."""
        found = [IterationRecord(self.path / name) for name in names(self.path)]
        numbered = [r for r in found if _ITERATION.fullmatch(r.iteration_id) and r.path.is_dir()]
        named = [r for r in found if r not in numbered and r.config_path.is_file()]
        return [
            *sorted(numbered, key=lambda r: _natural(r.iteration_id)),
            *sorted(named, key=lambda r: _natural(r.iteration_id)),
        ]

    def get_iteration(self, iteration_id: str) -> IterationRecord | None:
        """The iteration of this name; None if there is none or the name leads elsewhere."""
        try:
            record = IterationRecord(self.path / check_name(iteration_id))
        except ValueError:
            return None
        is_one = record.config_path.is_file() or _ITERATION.fullmatch(iteration_id)
        return record if is_one and record.path.is_dir() else None

    def create_iteration(self, iteration_id: str | None = None) -> IterationRecord:
        """A new, empty iteration folder; raises FileExistsError if the name is taken.

        Without a name it takes the number after the highest one.
        """
        if iteration_id is not None:
            path = self.path / check_name(iteration_id)
            path.mkdir(parents=True)
            return IterationRecord(path)
        while True:
            taken = [int(m[1]) for name in names(self.path) if (m := _ITERATION.fullmatch(name))]
            try:
                return self.create_iteration(f"iter_{max(taken, default=0) + 1}")
            except FileExistsError:
                continue  # another process was quicker

    def validate(self) -> list[str]:
        """What is missing or invalid, in the session and its iterations. Never raises."""
        files: dict[str, type[BaseModel] | None] = {
            self.status_path.name: StatusData,
            self.metadata_path.name: EntityMetadata,
            self.history_path.name: None,
            self.analysis_path.name: None,
            self.session_path.name: SessionConfig,
            self.intent_path.name: Intent,
            self.judge_path.name: AuthoredCode,
            self.lineage_path.name: LineageData,
            self.result_path.name: SessionResult,
            self.steering_path.name: SteeringTaken,
            self.clock_path.name: ClockReading,
        }
        iterations = {found.iteration_id: found.validate() for found in self.iteration_records()}
        return session_problems(self.path, files, iterations)


def _natural(name: str) -> list[tuple[int, int, str]]:
    """A sort key that takes the numbers in a name as numbers."""
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    ]


def _combined(statuses: list[StatusLiteral]) -> StatusLiteral:
    """How an iteration stands whose runs stand like this."""
    for status in ("running", "paused", "queued", "pending", "stale", "unknown"):
        if status in statuses:
            # Some ended and some not begun: it is under way.
            begun = status in {"queued", "pending"} and len(set(statuses)) > 1
            return "running" if begun else cast("StatusLiteral", status)
    if "completed" in statuses:
        return "completed"
    return "cancelled" if "cancelled" in statuses else "error"


if TYPE_CHECKING:

    def _is_a_run_record(record: IterationRecord) -> RunRecord:
        """The type checker holds the record and what training asks of one together."""
        return record
