"""The folders of an iteration and of a session, typed.

An iteration is a single training run (`iter_N/config.json`), or a loop iteration that holds many
(`iter_N/<config>_seed_<seed>/config.json`). Readers give None, or the empty value, for what is
absent or unreadable; `validate` says what is wrong.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from p2p.config import TrainConfig
from p2p.contracts import (
    ROLLOUT_LABELS,
    AuthoredCode,
    EntityMetadata,
    HumanLabels,
    Intent,
    IterationAggregation,
    JudgmentResult,
    LineageData,
    PolicyMetadata,
    Revision,
    RewardSpec,
    SessionConfig,
    SessionResult,
    StatusLiteral,
    TrainSummary,
)
from p2p.files import (
    UnreadableError,
    hold_lock,
    is_free,
    lines_backward,
    load_object,
    parse_line,
    read_bytes,
    read_lines,
    read_model,
    read_object,
    read_text,
    write_json,
    write_text,
)
from p2p.records.folder import (
    Folder,
    FolderPath,
    RecordFile,
    is_own_folder,
    names_in,
    natural_order,
)
from p2p.records.loop_files import (
    BestRun,
    ClockReading,
    ConfirmationTries,
    IterationPlan,
    JudgeAmendment,
    RewardCandidates,
    RewardSearch,
    SteeringTaken,
    StopRequest,
)
from p2p.records.statuses import ENDED
from p2p.settings import check_name, is_benchmark_case

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RUN_NAME = re.compile(r"(?P<config>.+)_seed_\d+")
_ITERATION = re.compile(r"iter_(\d+)")
_TRAJECTORY = re.compile(r"trajectory_(\d+)(?:_(\w+))?\.npz")
SILENT_S = 20.0
"""A session that gave no sign for so long, and whose lock nobody holds, is gone."""

_MOST_LINES_NAMED = 5


class IterationRecord(Folder):
    """runs/session_xxx/iter_N/, or one run inside a loop iteration."""

    # A training run.
    config = RecordFile("config.json", TrainConfig)
    config_path = FolderPath("config.json")
    reward_fn_path = FolderPath("reward_fn.py")
    reward_spec = RecordFile("reward_spec.json", RewardSpec)
    reward_spec_path = FolderPath("reward_spec.json")
    policy_metadata = RecordFile("policy_metadata.json", PolicyMetadata)
    """Of a run on an engine: what its exported policies carry."""
    summary = RecordFile("summary.json", TrainSummary)
    summary_path = FolderPath("summary.json")
    scalars_path = FolderPath("metrics/scalars.jsonl")
    prompt_path = FolderPath("prompt.txt")
    videos_dir = FolderPath("videos")
    checkpoints_dir = FolderPath("checkpoints")
    """With step_<step>/ for each evaluated step."""
    work_dir = FolderPath("work")
    """The only folder that the sandboxed trainer may write to: do not trust it."""
    start_policy_path = FolderPath("start_policy.safetensors")
    """What training starts from, where it does not start from nothing."""
    stop = RecordFile("stop.json", StopRequest)
    """Ends the training at a checkpoint that it has published."""
    judgment = RecordFile("judgment.json", JudgmentResult)
    judgment_path = FolderPath("judgment.json")
    streaming_dir = FolderPath("streaming_judgments")
    """With <step>.json for each early checkpoint that was judged."""
    amendment = RecordFile("judge_amendment.json", JudgeAmendment)
    """What later judges do better, by what judging this iteration has shown."""
    revised_reward_path = FolderPath("reward_fn_revised.py")

    # A loop iteration.
    plan = RecordFile("plan.json", IterationPlan)
    reward = RecordFile("reward.json", AuthoredCode)
    """The reward and how it came to be."""
    candidates = RecordFile("candidates.json", RewardCandidates)
    """The rewards it chooses from, where there are several."""
    search = RecordFile("search.json", RewardSearch)
    """How it chose one of them; `reward` is that one then."""
    judge = RecordFile("judge.json", AuthoredCode)
    """Where other criteria count from this iteration on, or the judge was amended for it."""
    aggregation = RecordFile("aggregation.json", IterationAggregation)
    best_run = RecordFile("best_run.json", BestRun)
    confirmation = RecordFile("confirmation.json", JudgmentResult)
    """The best run on held-out seeds, where its score passed."""
    confirmation_tries = RecordFile("confirmation_tries.json", ConfirmationTries)
    """Every use of held-out seeds, that on the way included."""
    revision = RecordFile("revision.json", Revision)
    """What the next iteration does differently, where one follows."""
    steering = RecordFile("steering.json", SteeringTaken)
    """The feedback taken up after this iteration."""

    @property
    def iteration_id(self) -> str:
        return self.path.name

    @property
    def number(self) -> int | None:
        """N of iter_N; None for another name."""
        match = _ITERATION.fullmatch(self.iteration_id)
        return int(match[1]) if match else None

    @property
    def trajectory_path(self) -> Path:
        """The latest trajectory_*.npz, the median episode where there is a choice.

        Without one, the place of the older trajectory.jsonl, which may not exist either.
        """
        trajectories = [
            ((int(match[1]), match[2] == "median", name), self.path / name)
            for name in names_in(self.path)
            if (match := _TRAJECTORY.fullmatch(name))
        ]
        return max(trajectories)[1] if trajectories else self.path / "trajectory.jsonl"

    def trajectory_file(self, step: int, label: str) -> Path:
        """Return where the trajectory of an evaluation episode lies."""
        return self.path / f"trajectory_{step}_{label}.npz"

    # --- reading ---------------------------------------------------------------------------------

    def read_config(self) -> dict[str, Any] | None:
        """config.json as it stands there; `config.read()` is the checked one."""
        return read_object(self.config_path)

    def read_summary(self) -> TrainSummary | None:
        return self.summary.read()

    def read_reward_source(self) -> str:
        return read_text(self.reward_fn_path) or ""

    def read_reward_spec(self) -> RewardSpec:
        return self.reward_spec.read() or RewardSpec()

    def read_judgment(self) -> JudgmentResult | None:
        return self.judgment.read()

    def read_streaming(self) -> dict[int, JudgmentResult]:
        """Return what the code judge made of early checkpoints, by step."""
        judgments = (
            (int(name.removesuffix(".json")), read_model(self.streaming_dir / name, JudgmentResult))
            for name in names_in(self.streaming_dir)
            if name.removesuffix(".json").isdecimal()
        )
        return dict(sorted((step, value) for step, value in judgments if value is not None))

    def video_filenames(self) -> list[str]:
        """Videos that are drawn, and of each recorded evaluation episode the one it can become."""
        videos = {n for n in names_in(self.videos_dir) if n.endswith(".mp4") and n[0] != "."}
        recorded = filter(None, map(_TRAJECTORY.fullmatch, names_in(self.path)))
        videos |= {f"eval_{m[1]}_{m[2]}.mp4" for m in recorded if m[2] in ROLLOUT_LABELS}
        return sorted(videos, key=natural_order)

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
        folders = sorted(
            (n for n in names_in(self.path) if RUN_NAME.fullmatch(n)), key=natural_order
        )
        return [IterationRecord(self.path / n) for n in folders if is_own_folder(self.path / n)]

    def derive_status(self) -> StatusLiteral:
        """Return how it stands, also where status.json is missing or its process is gone."""
        if not self.path.is_dir():
            return "unknown"
        if self.status_path.exists():
            return self.live_status()
        if runs := self.runs():
            return _combine_statuses([run.derive_status() for run in runs])
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
            1.0 if run.derive_status() in ENDED else run.compute_progress() or 0.0 for run in runs
        )
        return sum(done) / len(runs)

    def _own_progress(self) -> float | None:
        config = self.config.read()
        if config is None:
            return None
        if self.stated_status() == "completed":
            return 1.0
        for line in lines_backward(self.scalars_path):
            step = step_of(parse_line(line) or {})
            if step is not None:
                return min(step / config.total_timesteps, 1.0)
        return 0.0

    def validate(self) -> list[str]:
        """Return what is missing or invalid, one line each; empty if all is well. Never raises."""
        if not self.path.is_dir():
            return [f"{self.iteration_id}: no such folder"]
        runs = self.runs()
        is_loop = bool(runs) or self.plan.exists() or self.reward.exists()
        is_run = self.config.exists() or not is_loop
        is_done = is_run and self.derive_status() == "completed"
        needed = {
            self.status.path: not is_loop,
            self.config.path: is_run,
            self.reward_spec.path: is_done,
            self.summary.path: is_done,
        }
        problems: list[str] = []
        for file in self.model_files():
            problems += file.problems(needed=needed.get(file.path, False))
        if is_run:
            problems += self._run_problems(is_done=is_done)
        return problems + _problems_inside(runs)

    def _run_problems(self, *, is_done: bool) -> list[str]:
        """Return what is wrong with the files of a training run that are not records."""
        name, lines, rest = "metrics/scalars.jsonl", list[bytes](), b""
        problems = [] if self.read_reward_source().strip() else ["reward_fn.py: missing"]
        try:
            *lines, rest = read_bytes(self.scalars_path).split(b"\n")
        except FileNotFoundError:
            problems += [f"{name}: missing"] if is_done else []
        except OSError as error:
            problems.append(f"{name}: {error.strerror}")
        bad = (n for n, line in enumerate(lines, 1) if step_of(parse_line(line) or {}) is None)
        problems += [f"{name}: line {n} is not a record" for n in islice(bad, _MOST_LINES_NAMED)]
        problems += [f"{name}: torn last line"] if rest else []
        for line in self.parse_scalars()[1]:
            name = f"checkpoints/step_{step_of(line)}/policy.safetensors"
            problems += [] if (self.path / name).is_file() else [f"{name}: missing"]
        return problems

    # --- writing ---------------------------------------------------------------------------------

    def save_config(self, config: TrainConfig | Mapping[str, Any]) -> None:
        self.config.save(config)

    def save_reward_source(self, source: str) -> None:
        write_text(self.reward_fn_path, source)

    def save_reward_spec(self, spec: RewardSpec | Mapping[str, Any]) -> None:
        self.reward_spec.save(spec)

    def save_summary(self, summary: TrainSummary | Mapping[str, Any]) -> None:
        self.summary.save(summary)

    def save_judgment(self, judgment: JudgmentResult | Mapping[str, Any]) -> None:
        self.judgment.save(judgment)

    def save_revised_reward(self, code: str) -> None:
        write_text(self.revised_reward_path, code)


class SessionRecord(Folder):
    """runs/session_xxx/."""

    config = RecordFile("session.json", SessionConfig)
    """What was asked for."""
    intent = RecordFile("intent.json", Intent)
    """The rubric in force."""
    judge = RecordFile("judge.json", AuthoredCode)
    """The code judge in force, and how it came to be."""
    judge_fn_path = FolderPath("judge_fn.py")
    lineage = RecordFile("lineage.json", LineageData)
    result = RecordFile("result.json", SessionResult)
    """How the session stands, or ended."""
    clock = RecordFile("clock.json", ClockReading)
    steering = RecordFile("steering.json", SteeringTaken)
    """The feedback taken up before the first iteration."""
    steering_dir = FolderPath("steering")
    """With a file for each piece of feedback."""
    labels = RecordFile("human_labels.json", HumanLabels)
    labels_dir = FolderPath("labels")
    """With the videos under names that say nothing of them."""
    metadata = RecordFile("metadata.json", EntityMetadata)
    metadata_path = FolderPath("metadata.json")
    history_path = FolderPath("loop_history.json")
    analysis_path = FolderPath("analysis.json")
    report_path = FolderPath("report.md")
    llm_dir = FolderPath("llm")
    """With a file for each exchange with a model."""
    lock_path = FolderPath("session.lock")
    """Held by the process that works on the session."""

    @property
    def session_id(self) -> str:
        return self.path.name

    @property
    def api_id(self) -> str:
        """Its id in the API: that of a benchmark's case begins with the benchmark's."""
        case = f"{self.path.parent.name}_{self.session_id}"
        return case if is_benchmark_case(case) else self.session_id

    def iteration(self, number: int) -> IterationRecord:
        """iter_N, whether it is there or not."""
        return IterationRecord(self.path / f"iter_{number}")

    def derive_status(self) -> StatusLiteral:
        """Return how the session stands, seeing through a `running` whose process is gone.

        A folder of plain training runs has the status of the last one.
        Whoever works on a session of the loop holds its lock and gives a sign every few seconds, so
        that a killed one is known at once.
        """
        if not self.status_path.exists() and (iterations := self.iteration_records()):
            return iterations[-1].derive_status()
        status = self.live_status("pending" if self.path.is_dir() else "unknown")
        gone = status == "running" and self.silent_s() > SILENT_S and is_free(self.lock_path)
        return "stale" if gone else status

    def save_history(self, data: dict[str, Any]) -> None:
        write_json(self.history_path, data)

    def read_history(self) -> dict[str, Any] | None:
        return read_object(self.history_path)

    def read_metadata(self) -> EntityMetadata:
        """Return what people attached to the session; empty if nothing or nothing readable."""
        return self.metadata.read() or EntityMetadata()

    def save_metadata(self, data: EntityMetadata | Mapping[str, Any]) -> None:
        self.metadata.save(data)

    def update_metadata(self, **kwargs: Any) -> EntityMetadata:
        """Change some of the metadata, in one step for all writers; raises ValueError if wrong.

        A metadata.json that cannot be read is kept beside the new one.
        """
        with hold_lock(self.metadata_path.with_suffix(".lock")):
            try:
                old = self.metadata.load() or EntityMetadata()
            except UnreadableError:
                self.metadata_path.replace(self.metadata_path.with_suffix(".unreadable"))
                old = EntityMetadata()
            new = EntityMetadata.model_validate({**old.model_dump(), **kwargs})
            self.save_metadata(new)
        return new

    def save_analysis(self, data: dict[str, Any]) -> None:
        write_json(self.analysis_path, data)

    def read_analysis(self) -> dict[str, Any] | None:
        return read_object(self.analysis_path)

    def iteration_records(self) -> list[IterationRecord]:
        """Return all iterations of either layout: iter_1, iter_2, ..., then other names."""
        records = [
            IterationRecord(self.path / name)
            for name in sorted(names_in(self.path), key=natural_order)
            if is_own_folder(self.path / name)
        ]
        numbered = [r for r in records if r.number is not None]
        named = [r for r in records if r not in numbered and r.config_path.is_file()]
        return numbered + named

    def get_iteration(self, iteration_id: str) -> IterationRecord | None:
        """The iteration of this name; None if there is none or the name leads elsewhere."""
        try:
            record = IterationRecord(self.path / check_name(iteration_id))
        except ValueError:
            return None
        is_iteration = record.config_path.is_file() or record.number is not None
        return record if is_iteration and is_own_folder(record.path) else None

    def create_iteration(self, iteration_id: str | None = None) -> IterationRecord:
        """A new, empty iteration folder; raises FileExistsError if the name is taken.

        Without a name it takes the number after the highest one.
        """
        if iteration_id is not None:
            path = self.path / check_name(iteration_id)
            path.mkdir(parents=True)
            return IterationRecord(path)
        while True:
            numbers = [
                int(m[1]) for name in names_in(self.path) if (m := _ITERATION.fullmatch(name))
            ]
            try:
                return self.create_iteration(f"iter_{max(numbers, default=0) + 1}")
            except FileExistsError:
                continue  # another process was quicker

    def find_unreadable(self) -> list[str]:
        """Return the problems of the loop's unreadable records, in all iterations and runs."""
        iterations = self.iteration_records()
        runs = [run for iteration in iterations for run in iteration.runs()]
        return [
            f"{record.path.relative_to(self.path) / problem}"
            for record in (self, *iterations, *runs)
            for file in record.model_files()
            if file.path != record.status_path  # it has a state of its own
            for problem in file.problems()
        ]

    def validate(self) -> list[str]:
        """Return what is missing or invalid, in the session and its iterations. Never raises."""
        if not self.path.is_dir():
            return [f"{self.session_id}: no such folder"]
        problems: list[str] = []
        for file in self.model_files():
            problems += file.problems(needed=file.path == self.status_path)
        for path in (self.history_path, self.analysis_path):
            try:
                load_object(path)
            except UnreadableError as error:
                problems.append(f"{path.name}: {error}")
        return problems + _problems_inside(self.iteration_records())


def step_of(line: Mapping[str, Any]) -> int | None:
    """The training step that a line of scalars.jsonl belongs to."""
    step = line.get("global_step")
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    return step if isinstance(step, int) and not isinstance(step, bool) and step >= 0 else None


def _problems_inside(records: list[IterationRecord]) -> list[str]:
    return [f"{record.iteration_id}/{line}" for record in records for line in record.validate()]


def _combine_statuses(statuses: list[StatusLiteral]) -> StatusLiteral:
    """Return how an iteration stands whose runs stand like this."""
    for status in ("running", "paused", "queued", "pending", "stale", "unknown"):
        if status in statuses:
            # Some ended and some not begun: it is under way.
            begun = status in {"queued", "pending"} and len(set(statuses)) > 1
            return "running" if begun else cast("StatusLiteral", status)
    if "completed" in statuses:
        return "completed"
    return "cancelled" if "cancelled" in statuses else "error"
