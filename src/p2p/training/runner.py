"""One training run, from a reward's source to a finished iteration directory.

This process owns every file of the directory. The training itself, with the reward in it, happens
in the sandbox; what comes out of there is checked here before it is published.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from p2p import files
from p2p.config import ConfigurationError, TrainConfig
from p2p.contracts import (
    Alive,
    CheckpointInfo,
    EvalReady,
    Failed,
    Finished,
    ScalarsReady,
    Started,
    StateSaved,
    TrainSummary,
    WorkerMessage,
)
from p2p.records.iteration_record import IterationRecord
from p2p.sandbox import (
    Sandbox,
    SandboxedProcess,
    SandboxExit,
    SandboxUnavailable,
    UntrustedResultError,
    run_worker,
)
from p2p.settings import get_settings
from p2p.training.checkpoints import (
    START_POLICY,
    adopt_state,
    checkpoint_steps,
    environment_widths,
    export_policy,
    forget_checkpoints,
    forget_leftovers,
    publish_checkpoint,
    published_bytes,
)
from p2p.training.compiled_update import UpdateProgram, cache_variables, compiled_update
from p2p.training.engines.facts import policy_metadata, surroundings
from p2p.training.engines.table import is_engine
from p2p.training.envs.registry import UnknownEnvironmentError
from p2p.training.metrics import RunMetrics
from p2p.training.model_files.adoption import restore
from p2p.training.model_files.store import copy_into, find_copy, is_model
from p2p.training.reward_loader import find_hanging_code
from p2p.training.trainer_messages import TrainerMessages, longest_training_s
from p2p.training.worker import choose_backend
from unstable.writers import MissingExtraError

WORKER_MODULE = "p2p.training.worker"
WORKER_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "NPROC": "1"}
"""XLA's CPU client reads NPROC when it starts: more than one thread makes an update of a small
network slower and burns a second core."""
SAC_ENVIRONMENT = {**WORKER_ENVIRONMENT, "NPROC": "2"}
"""Its updates are large enough for a second thread. Always two, on any number of cores: an update
of a wide network rounds differently with another number."""
HEARTBEAT_S = 5.0

FailureKind = Literal["reward", "environment", "config", "internal"]


class TrainingFailed(Exception):
    """A run ended without a result.

    Attributes:
        kind: `reward` when the reward function is to blame, which rewriting it may fix.
        detail: the traceback or output behind the message, if there is one.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        detail: str = "",
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.detail = detail


class TrainingKilled(TrainingFailed):
    """Something that is neither the reward nor a limit of ours ended the training: the machine."""


class TrainingCancelled(Exception):
    """The run was cancelled through its status file."""


class _TrainingStopped(Exception):
    """The run ends with a checkpoint that it has published: stop.json says so."""


@dataclass(frozen=True)
class RunOptions:
    """What is not part of the configuration, because it does not change the result."""

    videos: bool = True
    """Draw the median episode of the selected checkpoint; the others when they are asked for."""
    export: bool = True
    """Write policy.zip of the selected checkpoint; of the others when it is asked for."""
    memory_bytes: int = 8 * 2**30
    disk_bytes: int = 4 * 2**30
    stall_seconds: float = 120.0
    """Without a word from the trainer for so long, something is taken to hang."""
    lock_patience_s: float = 1.0
    """How long to wait for another process that trains in the same directory."""
    trackers: tuple[str, ...] = ()
    """Where metrics go besides scalars.jsonl and TensorBoard: names of metrics.TRACKERS."""
    until: int | None = None
    """Train no further than to this step."""
    pause: bool = False
    """At `until` the run is not over: it waits, with its state, to be called again."""
    keep_state: bool = False
    """Leave the state of a completed run, so that another can train it longer."""


def run_training(
    config: TrainConfig,
    reward_code: str,
    record: IterationRecord,
    *,
    options: RunOptions | None = None,
    on_message: Callable[[WorkerMessage], None] = lambda _: None,
) -> TrainSummary:
    """Train, evaluate, publish; the record's directory then holds all of it.

    Called again with the same configuration and reward, a run that was killed or cancelled
    resumes from its last saved state, and one that is complete is not done again. A run that
    pauses at `options.until` has no summary.json yet; its status is `queued`. Where only the
    sandbox was killed, and not by us, the run resumes at once, a single time.

    Raises:
        TrainingFailed: the run has no result; status.json says why.
        TrainingCancelled: status.json was set to `cancelled` by someone else.
        KeyboardInterrupt: passed on after everything is stopped; the status is `cancelled`.
    """
    options = options or RunOptions()
    try:
        files.refuse_links(record.path)
        restore(record.path, config.env_id)
        if find_copy(record.path.absolute(), config.env_id) is None:
            copy_into(record.path, config.env_id)
    except ConfigurationError as error:
        raise TrainingFailed("config", str(error)) from error
    except OSError as error:
        raise TrainingFailed("config", f"{error.filename}: {error.strerror}") from error
    try:
        with files.hold_lock(record.path / "run.lock", patience_s=options.lock_patience_s):
            done = load_completed_run(record, config, reward_code)
            return done or _run(_Run(config, reward_code, record, options, on_message))
    except TimeoutError as error:
        raise TrainingFailed(
            "config", f"another process is training in {record.path} at this moment"
        ) from error


def load_completed_run(
    record: IterationRecord, config: TrainConfig, reward_code: str
) -> TrainSummary | None:
    """The summary of this very run if it is complete, None if there is work left.

    A field that an earlier version did not write has its default. Raises TrainingFailed if the
    directory holds another run.
    """
    known = record.config.read()
    if known is None and record.read_config() is None:
        return None
    source = record.read_reward_source()
    differences = ["configuration"] if known is None else config.differences(known)
    differences += ["reward"] if source and source != reward_code else []
    if differences:
        raise TrainingFailed(
            "config",
            f"{record.path} holds another run (it differs in {', '.join(differences)}); "
            "choose another --iteration-id, or delete the directory",
        )
    status = record.read_status()
    complete = status is not None and status.status == "completed"
    return record.read_summary() if complete else None


def _run(run: _Run) -> TrainSummary:
    """Train with the record's status kept true, however it ends."""
    record = run.record
    record.save_reward_source(run.reward_code)
    record.save_config(run.config)
    record.work_dir.mkdir(exist_ok=True)
    forget_leftovers(record.work_dir)
    # A run that is started again is no longer cancelled.
    if not record.set_status_if("running", {"cancelled"}):
        record.set_status("running")
    try:
        summary = _train_with_retry(run)
        if run.options.export and summary.selected_step is not None and not run.pauses:
            export_policy(record, summary.selected_step)
    except (KeyboardInterrupt, TrainingCancelled):
        record.set_status("cancelled")
        raise
    except TrainingFailed as failure:
        forget_leftovers(record.work_dir)
        record.set_status("failed" if failure.kind == "reward" else "error", str(failure))
        raise
    except BaseException as error:
        record.set_status("error", f"{type(error).__name__}: {error}")
        raise
    if run.pauses:
        record.set_status("queued")
        return summary
    record.save_summary(summary)
    record.set_status("completed")
    if run.options.videos and summary.selected_step is not None:
        summary = _draw_selected(record, summary, summary.selected_step)
    if run.options.keep_state:
        forget_leftovers(record.work_dir)
    else:
        shutil.rmtree(record.work_dir, ignore_errors=True)
    return summary


def _draw_selected(record: IterationRecord, summary: TrainSummary, step: int) -> TrainSummary:
    """Draw the selected checkpoint's median episode; note a failure in the summary."""
    from p2p.training.video.rendering import VideoError, draw_video

    try:
        draw_video(record.videos_dir / f"eval_{step}_median.mp4")
    except VideoError as error:
        summary = summary.model_copy(update={"warnings": (*summary.warnings, f"no video: {error}")})
        record.save_summary(summary)
    return summary


def _train_with_retry(run: _Run) -> TrainSummary:
    """Train; resume once from the last saved state if something killed it."""
    try:
        return run.train()
    except TrainingKilled as killed:
        forget_leftovers(run.record.work_dir)
        again = _Run(run.config, run.reward_code, run.record, run.options, run.on_message)
        again.warnings.append(f"{killed}; it resumed from its last saved state")
        try:
            return again.train()
        except TrainingKilled as once_more:
            raise TrainingKilled(
                "environment",
                f"{once_more}. That was the second time; see what the machine is short of, and "
                "resume",
                once_more.detail,
            ) from once_more


@dataclass
class _Run:
    """A run under way, as the parent sees it."""

    config: TrainConfig
    reward_code: str
    record: IterationRecord
    options: RunOptions
    on_message: Callable[[WorkerMessage], None]
    started: Started | None = None
    finished: Finished | None = None
    metrics: RunMetrics | None = None
    warnings: list[str] = field(default_factory=list)
    last_beat: float = -math.inf
    last_step: int = 0
    began: float = field(default_factory=time.monotonic)
    started_at: float = -math.inf
    """When the trainer said that it had started."""
    reward_seconds: float = 0.0
    """What the reward's calls have taken since, as the trainer says."""
    published: int = 0
    """Bytes of checkpoints and metrics: they count as disk space of the sandbox."""

    @property
    def pauses(self) -> bool:
        """Whether this run stops on its way, to be continued."""
        until, total = self.options.until, self.config.total_timesteps
        return self.options.pause and until is not None and until < total

    def train(self) -> TrainSummary:
        try:
            end = self._run_worker()
            if end is None:
                self.finished = self._make_early_stop()
            if self.started is None or self.finished is None:
                assert end is not None
                share = self.reward_seconds / (time.monotonic() - self.started_at)
                raise explain_end(end, f"training ended at step {self.last_step:,}", share)
            summary = self._summary(self.started, self.finished)
        except UntrustedResultError as error:
            raise TrainingFailed("reward", f"what training left cannot be used: {error}") from error
        except (SandboxUnavailable, MissingExtraError, ConfigurationError) as error:
            raise TrainingFailed("config", str(error)) from error
        except OSError as error:  # a full disk, a folder that went away
            raise TrainingFailed("environment", f"{self.record.path}: {error}") from error
        return summary.model_copy(
            update={
                "training_time_s": round(time.monotonic() - self.began, 3),
                "warnings": (*self.warnings, *summary.warnings),
            }
        )

    def _run_worker(self) -> SandboxExit | None:
        """Train in the sandbox, publishing what the messages announce; None: it was to stop."""
        messages = TrainerMessages(self.config)

        def read(line: bytes) -> WorkerMessage:
            message = messages.read(line)
            if isinstance(message, ScalarsReady | EvalReady):
                self.published += 2 * len(line)  # to scalars.jsonl and to TensorBoard's files
            return message

        def take(message: WorkerMessage, process: SandboxedProcess) -> None:
            self._handle(message, process.folder)
            process.charge(self.published)  # as if it had written all of it
            if self.published > self.options.disk_bytes:
                raise UntrustedResultError(
                    f"checkpoints and metrics take more than {self.options.disk_bytes:,} bytes"
                )
            self.on_message(message)

        payload = {
            "config": self.config.model_dump(mode="json"),
            "reward_code": self.reward_code,
            "folder": str(self.record.work_dir.absolute()),
            "until": self.options.until,
            "stall_seconds": self.options.stall_seconds,
        }
        try:
            return run_worker(
                WORKER_MODULE,
                payload,
                self._prepare_sandbox(),
                read=read,
                on_message=take,
                on_tick=self._check_stop,
            ).wait()
        except _TrainingStopped:
            return None
        finally:
            if self.metrics is not None:
                self.warnings += self.metrics.close()

    def _prepare_sandbox(self) -> Sandbox:
        """The sandbox of the trainer, with the policy it starts from in its folder."""
        folder = self.record.work_dir.absolute()
        if is_engine(self.config.engine) or is_model(self.config.env_id):
            # Kernels are compiled, too, where the engine starts for it.
            self.record.policy_metadata.save(
                policy_metadata(
                    self.config,
                    f"{self.record.path.parent.name}/{self.record.path.name}",
                    lambda *_: self._beat(),
                )
            )
        engine = surroundings(self.config, folder)
        start = self.record.start_policy_path
        if start.is_file():
            shutil.copyfile(start, folder / START_POLICY)
        compiled = _find_compiled_update(self.config)
        return engine.sandbox(
            folder,
            memory_bytes=self.options.memory_bytes,
            disk_bytes=self.options.disk_bytes,
            stall_seconds=self.options.stall_seconds,
            wall_seconds=longest_training_s(self.config),
            readable=() if compiled is None else (compiled,),
            env={
                **(SAC_ENVIRONMENT if self.config.algorithm == "sac" else WORKER_ENVIRONMENT),
                **({} if compiled is None else cache_variables(compiled)),
            },
        )

    def _beat(self) -> None:
        """Write the heartbeat every few seconds, unless it was cancelled."""
        now = time.monotonic()
        if now - self.last_beat < HEARTBEAT_S:
            return
        self.last_beat = now
        status = self.record.read_status()
        if status is not None and status.status == "cancelled":
            raise TrainingCancelled
        self.record.touch_heartbeat()

    def _check_stop(self) -> None:
        """Beat, and end the training if a stop is requested and its checkpoint is published."""
        self._beat()
        if self.started is not None and self._stop_step() in checkpoint_steps(self.record):
            raise _TrainingStopped

    def _stop_step(self) -> int | None:
        stop = self.record.stop.read() if self.record.stop.exists() else None
        return stop.step if stop else None

    def _make_early_stop(self) -> Finished:
        """Return the result message of a training that was stopped early."""
        lines = self.record.parse_scalars()[0]
        return Finished(
            global_step=self.last_step,
            total_episodes=round(sum(line.get("episodes_per_rollout", 0) for line in lines)),
            final_episodic_return=lines[-1].get("episodic_return") if lines else None,
        )

    def _tracked_names(self) -> tuple[str, str]:
        """The run's name among those of all sessions, and its session's."""
        *_, session, iteration, run = self.record.path.absolute().parts
        if not iteration.startswith("iter_"):  # an iteration of `p2p train` is a run itself
            return f"{iteration}-{run}", iteration
        return f"{session}-{iteration}-{run}", session

    def _handle(self, message: WorkerMessage, left: Path) -> None:
        match message:
            case Started():
                self.started, self.started_at = message, time.monotonic()
                self.record.save_reward_spec(message.reward)
                self.metrics = RunMetrics(
                    self.record.scalars_path.parent,
                    *self._tracked_names(),
                    self.options.trackers,
                    after_step=message.start_step,
                    config=self.config.model_dump(mode="json"),
                )
                forget_checkpoints(self.record, after=message.start_step)
                self.published = published_bytes(self.record)
            case ScalarsReady() if self.metrics is not None:
                self.last_step = message.scalars.global_step
                self.metrics.write(message.scalars)
            case EvalReady() if self.metrics is not None:
                self.published += publish_checkpoint(
                    self.record,
                    self.config,
                    message,
                    left,
                    self.options.disk_bytes - self.published,
                )
                self.metrics.write(message.result)
            case StateSaved():
                adopt_state(self.record.work_dir, message.file, left)
            case Alive():
                self.reward_seconds = message.reward_seconds
            case Finished():
                self.finished = message
            case Failed():
                raise TrainingFailed(message.kind, message.message, message.traceback)
            case _:
                pass

    def _summary(self, started: Started, finished: Finished) -> TrainSummary:
        """Summarise the training, without the warnings and time of later phases."""
        from p2p.analysis.guardrails import check_run

        training, evaluation = self.record.parse_scalars()
        stop_step = self._stop_step()
        checkpoints = tuple(
            CheckpointInfo(
                step=line["global_step"],
                mean_return=line["mean_return"],
                std_return=line["std_return"],
            )
            for line in evaluation
        )
        return TrainSummary(
            env_id=self.config.env_id,
            seed=self.config.seed,
            algorithm=self.config.algorithm,
            backend=started.backend,
            total_timesteps=finished.global_step,
            training_time_s=0.0,
            total_episodes=finished.total_episodes,
            final_episodic_return=finished.final_episodic_return,
            reward_calls=started.reward_calls,
            checkpoints=checkpoints,
            selected_step=stop_step
            if stop_step in {each.step for each in checkpoints}
            else select_checkpoint(checkpoints, self.config.judgment_select),
            warnings=tuple(warning.message for warning in check_run(training, evaluation)),
        )


def explain_end(end: SandboxExit, what: str, reward_share: float) -> TrainingFailed:
    """Return the error of a worker that ended without a word of its own.

    The reward is in its process: `reward_share` is the share of the time that its calls took.
    """
    message = f"{what} ({end.reason}): {end.message}"
    kind: FailureKind = "reward"
    if end.reason == "killed from outside":
        return TrainingKilled("environment", message, end.output_tail)
    if end.reason == "stalled":
        kind, culprit = find_hanging_code(end.output_tail)
        message = f"{culprit} hangs: {what}, {end.message}"
    elif end.reason == "wall clock":
        kind = "reward" if reward_share > 0.5 else "environment"
        message += f"; the reward's calls took {reward_share:.0%} of the time"
    elif end.reason == "memory":  # of a reward that asks for too much, the worker tells itself
        kind = "environment"
        message += "; fewer num_envs or a smaller replay_size need less"
    elif end.returncode < 0:  # Python code leaves a traceback, or an exit status
        kind = "environment"
        message += "; compiled code of the simulator or of a library has crashed"
    return TrainingFailed(kind, message, end.output_tail)


def _find_compiled_update(config: TrainConfig) -> Path | None:
    """The folder with this run's compiled update, where there is one to be had."""
    root = get_settings().cache_dir
    try:
        if root is None or choose_backend(config) != "fast":
            return None
        widths = environment_widths(config)
        program = UpdateProgram.from_config(config, *widths)
    except (ConfigurationError, UnknownEnvironmentError):  # for the trainer to tell
        return None
    return compiled_update(program, root / "updates", WORKER_ENVIRONMENT)


def select_checkpoint(
    checkpoints: tuple[CheckpointInfo, ...], rule: Literal["last", "best"]
) -> int | None:
    """The step of the selected checkpoint; the later one of equals."""
    if not checkpoints:
        return None
    if rule == "last":
        return checkpoints[-1].step
    return max(checkpoints, key=lambda info: (info.mean_return, info.step)).step
