"""The learner: updates the policy on batches of steps, and writes checkpoints."""

from __future__ import annotations

import logging
import math
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from unstable.algorithms.policy_gradient import Sample
from unstable.buffer import BatchSource, StepBuffer
from unstable.core import BaseAlgo, Step
from unstable.engines.transformers_engine import TransformersEngine
from unstable.learners.checkpoints import (
    gather_tensors,
    read_adapter_files,
    read_state,
    restore_tensors,
    save_checkpoint,
    write_state,
)
from unstable.learners.policy import (
    Auto,
    choose_device,
    choose_dtype,
    choose_settings,
    copy_adapter,
    enable_full_activation_ckpt,
    load_policy,
)
from unstable.model_pool import ModelPool
from unstable.trackers import Tracker, log_to_run
from unstable.utils.handles import call, send
from unstable.utils.logging import summarize_error

if TYPE_CHECKING:
    from torch import Tensor


def compute_rate_factor(
    name: str, step: int, total: int | None, warmup: int = 0, floor: float = 0.0
) -> float:
    """Return the factor of the learning rate.

    Args:
        name: one of SCHEDULES.
        step: updates done so far.
        total: updates of the whole run; `constant` needs none.
        warmup: over so many updates the rate rises to its value first.
        floor: the factor at the end.
    """
    if name not in SCHEDULES:
        raise ValueError(f"no lr_schedule {name!r}; there are {', '.join(SCHEDULES)}")
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if name == "constant":
        return 1.0
    if total is None or total <= warmup:
        raise ValueError(f"lr_schedule {name!r} needs lr_total, beyond lr_warmup: it is {total}")
    done = min(1.0, (step - warmup) / (total - warmup))
    return floor + (1.0 - floor) * SCHEDULES[name](done)


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
    "linear": lambda done: 1.0 - done,
}
"""From the share of the run that is done to the share of the rate that is left."""


_LOG = logging.getLogger(__name__)
MAX_SKIPPED = 3
"""Optimiser steps in a row that may come to nothing."""


class NonFiniteError(RuntimeError):
    """Losses or gradients were not finite, several times in a row."""


class StandardLearner:
    """Updates the policy on batches of the buffer, and registers its checkpoints.

    Args:
        model_name: the base model, by Hugging Face name or folder.
        step_buffer: where batches come from.
        model_pool: gets every checkpoint.
        algorithm: makes steps into gradients.
        batch_size: steps of an update.
        mini_batch_size: sequences of a forward pass, at least. Gradients are summed over them.
            The algorithms here pass more at once while they fit into `pack_tokens`; that changes
            the speed and nothing else.
        max_generation_len: how long answers can get; what many losses are divided by.
        learning_rate: of AdamW.
        grad_clip: the largest L2 norm of all gradients together.
        batch_delay_buffer: `train` waits until the buffer has so many batches.
        lora_cfg: `lora_rank`, `lora_alpha`, `lora_dropout`, `target_modules`; see LORA_DEFAULTS.
        initial_lora_path: an adapter to begin with; its own shape holds.
        num_learners: how many learners take batches from this buffer: each waits for so many
            times the data, and none takes what another waits for.
        ckpt_root: folder of the checkpoints; None: the tracker's, or `checkpoints` without one.
        save_every: updates from one checkpoint to the next.
        activation_checkpointing: keep no activations within blocks, compute them twice.
        gradient_checkpointing: the same by whole layers, as Hugging Face does it. Either may be
            `auto`: as free memory allows.
        use_trainer_cache: let forward passes keep keys and values.
        max_train_len: train on the first so many tokens of prompt and answer only; `auto`: on as
            many as fit. `settings` and the log say what was chosen.
        tracker: gets the metrics of every update.
        device: `auto`, `cpu`, `cuda`, ...
        dtype: of frozen weights: `auto`, `float32`, `bfloat16`, `float16`.
        full_parameters: train all of the model instead of an adapter.
        max_staleness: steps sampled by a policy more updates old than this are dropped.
        steps_per_batch: optimiser steps that a batch is divided into.
        epochs: how often a batch is gone through.
        lr_schedule: `constant`, `linear` or `cosine`.
        lr_total: updates of the whole run, for schedules that end.
        lr_warmup: updates over which the rate rises.
        lr_floor: the rate's factor at the end.
        weight_decay: of AdamW.
        seed: of new adapters, dropout, and the order within a batch.
        pack_tokens: tokens of a forward pass. None: on a GPU what fits into memory, up to 16,384;
            else 4,096. 0: `mini_batch_size` alone counts.
        memory_share: of a GPU's free memory for the learner; 0.9 where it has the GPU for itself.
        base: a model and its tokenizer that are in memory already; its weights stay as they are.
        engine: plays in this process, maybe with the same weights; it gets adapters from memory.
    """

    RAY_OPTIONS: ClassVar[dict[str, Any]] = {"num_cpus": 0}
    """It waits for its GPU alone: cores may be fewer than actors."""

    def __init__(
        self,
        model_name: str,
        step_buffer: StepBuffer,
        model_pool: ModelPool | None,
        algorithm: BaseAlgo,
        batch_size: int,
        mini_batch_size: int = 1,
        max_generation_len: int = 4096,
        learning_rate: float = 1e-5,
        grad_clip: float = 1.0,
        batch_delay_buffer: float = 1.5,
        lora_cfg: Mapping[str, Any] | None = None,
        initial_lora_path: str | None = None,
        num_learners: int = 1,
        ckpt_root: str | Path | None = None,
        save_every: int = 1,
        activation_checkpointing: bool | Auto = False,
        gradient_checkpointing: bool | Auto = False,
        use_trainer_cache: bool = False,
        max_train_len: int | Auto | None = None,
        tracker: Tracker | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        full_parameters: bool = False,
        max_staleness: int | None = None,
        steps_per_batch: int = 1,
        epochs: int = 1,
        lr_schedule: str = "constant",
        lr_total: int | None = None,
        lr_warmup: int = 0,
        lr_floor: float = 0.0,
        weight_decay: float = 0.0,
        seed: int = 0,
        pack_tokens: int | None = None,
        memory_share: float = 0.5,
        base: tuple[Any, Any] | None = None,
        engine: TransformersEngine | None = None,
    ) -> None:
        check_settings(locals())
        self.step_buffer = step_buffer
        self._batches = BatchSource(
            step_buffer,
            batch_delay_buffer,
            num_learners,
            max_staleness,
            whole_games=algorithm.needs_episodes,
            whole_groups=algorithm.needs_groups,
        )
        self.model_pool = model_pool
        self.tracker = tracker
        log_to_run("learner", tracker)
        self.algorithm = algorithm
        self.batch_size = batch_size
        self.mini_batch_size = mini_batch_size
        self.grad_clip = grad_clip
        self.save_every = save_every
        self.full_parameters = full_parameters
        self.steps_per_batch = steps_per_batch
        self.epochs = epochs
        self.seed = seed
        self.device = choose_device(device)
        self._schedule = (lr_schedule, lr_total, lr_warmup, lr_floor)
        self._step = 0
        self._samples_seen = 0
        self._untrained: Counter[str] = Counter(too_long=0, not_finite=0)
        """Steps that were in a batch and taught nothing, by reason."""
        self._skipped_in_row = 0
        self._checked = False
        self._updating = False
        self._ckpt_root = _choose_checkpoint_root(ckpt_root, tracker)
        with self._seed_generators():
            self.model, self.tokenizer = load_policy(
                model_name, self.device, choose_dtype(dtype, self.device), lora_cfg or {},
                initial_lora_path, full_parameters=full_parameters, base=base,
            )  # fmt: skip
            self.settings = choose_settings(
                self.model, self.device, memory_share, max_train_len=max_train_len,
                activation_checkpointing=activation_checkpointing,
                gradient_checkpointing=gradient_checkpointing, pack_tokens=pack_tokens,
            )  # fmt: skip
            _LOG.info("%s", self.settings)
            if self.settings.activation_checkpointing:
                enable_full_activation_ckpt(self.model)
            if self.settings.gradient_checkpointing:
                self.model.gradient_checkpointing_enable({"use_reentrant": False})
            algorithm.use_cache = use_trainer_cache
            algorithm.initialize(
                self.model, self.tokenizer, self.device, max_generation_len,
                self.settings.max_train_len,
            )  # fmt: skip
        self.pack_tokens = self.settings.pack_tokens
        self._groups = self._group_parameters()
        self.optimizer = torch.optim.AdamW(
            [
                {
                    "params": list(parameters.values()),
                    "lr": learning_rate
                    if name == "policy"
                    else _choose_rate(algorithm, name, learning_rate),
                }
                for name, parameters in self._groups.items()
            ],
            weight_decay=weight_decay,
        )
        self._rates = [group["lr"] for group in self.optimizer.param_groups]
        self._engine = engine
        if engine is not None:
            engine.reserve(copy_adapter(self.model, "", self.model.dtype))

    # --- training -----------------------------------------------------------------------------

    def train(self, iterations: int) -> None:
        """Update until the learner's step is `iterations`, then stop the buffer.

        Raises:
            ValueError: the buffer can never hold as much as is waited for.
            RuntimeError: collection ended before there was enough data.
        """
        reason = "the learner has ended"
        try:
            while self._step < iterations:
                self.next_update()
        except Exception as error:
            reason = f"the learner has failed: {summarize_error(error)}"
            raise
        finally:  # also on an error: the collected games would not be used
            send(self.step_buffer.stop, reason)

    def next_update(self) -> dict[str, float]:
        """Wait for enough data, update once, and return the metrics.

        Raises:
            ValueError: the buffer can never hold as much as is waited for.
            RuntimeError: collection ended before there was enough.
        """
        if not self._checked:
            self._batches.check_capacity(self.batch_size)
            self._checked = True
        steps: Sequence[Step] = ()
        while not steps:  # all of a batch may be too old
            self._batches.wait(self.batch_size, self._step)
            steps = self._batches.take(self.batch_size, self._step)
        return self._learn(steps)

    def update_once(self, batch_size: int | None = None) -> dict[str, float]:
        """Take a batch now, update, log, and register a checkpoint if it is due.

        Args:
            batch_size: steps to take, where it is not the learner's own number.

        Returns:
            What was logged.

        Raises:
            ValueError: the buffer has too few steps, or all of them are too old.
            NonFiniteError: losses or gradients were not finite for the third time in a row.
        """
        steps = self._batches.take(batch_size or self.batch_size, self._step)
        if not steps:
            raise ValueError(
                "every step of the batch was sampled more than max_staleness="
                f"{self._batches.max_staleness} updates ago"
            )
        return self._learn(steps)

    def _learn(self, steps: Sequence[Step]) -> dict[str, float]:
        factor = compute_rate_factor(self._schedule[0], self._step, *self._schedule[1:])
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self._updating = True  # and stays so if it fails half-way
        with self._seed_generators():
            seen = self._optimise(steps)
        self._updating = False
        self._step += 1
        self._samples_seen += len(steps)
        info = {
            **seen,
            "step": float(self._step),
            "samples_seen": float(self._samples_seen),
            "lr": self._rates[0] * factor,
            "num_steps": float(len(steps)),
            "stale_dropped": float(self._batches.stale),
            **{f"{reason}_dropped": float(n) for reason, n in self._untrained.items()},
        }
        _LOG.info("update %d: loss %.4g, %d steps", self._step, seen.get("loss", 0.0), len(steps))
        if self.tracker is not None:
            send(self.tracker.log_learner, info)
        if self._step % self.save_every == 0:
            self.save_checkpoint()
        return info

    def _optimise(self, steps: Sequence[Step]) -> dict[str, float]:
        with self._autocast():
            items = list(self.algorithm.prepare_steps(steps))
        order = random.Random(self._step_seed())
        metrics: list[dict[str, float]] = []
        learned: set[int] = set()
        for _ in range(self.epochs):
            parts = [items]
            if self.steps_per_batch > 1:
                order.shuffle(items)
                count = min(self.steps_per_batch, len(items))
                parts = [items[index::count] for index in range(count)]
            for part in parts:
                seen = self._optimiser_step(part)
                metrics.append(seen)
                if not seen["skipped"]:
                    learned.update(map(id, part))
        empty = [item for item in items if isinstance(item, Sample) and not item.trained]
        self._untrained["too_long"] += len(empty)
        self._untrained["not_finite"] += len({*map(id, items)} - learned - {*map(id, empty)})
        names = dict.fromkeys(name for one in metrics for name in one)
        return {
            name: sum(values) / len(values)
            for name in names
            if (values := [one[name] for one in metrics if name in one])
        }

    def _optimiser_step(self, items: Sequence[Any]) -> dict[str, float]:
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        seen: dict[str, float] = {}
        bad: list[Any] = []
        for mini in self.algorithm.split(items, self.mini_batch_size, self.pack_tokens or None):
            with self._autocast():
                numbers = self.algorithm.update(mini, scaling=len(items) / len(mini))
            if not math.isfinite(numbers.get("loss", 0.0)):
                bad += mini
            for name, value in numbers.items():
                seen[name] = seen.get(name, 0.0) + value * len(mini) / len(items)
        norms = [self._clip(list(group.values())) for group in self._groups.values()]
        seen["grad_norm"] = norms[0]
        finite = not bad and all(math.isfinite(norm) for norm in norms)
        seen["skipped"] = float(not finite)
        if finite:
            self.optimizer.step()
            self._skipped_in_row = 0
        else:
            self._report(bad or items, "losses" if bad else "gradients")
        return seen

    def _clip(self, parameters: list[Tensor]) -> float:
        return float(torch.nn.utils.clip_grad_norm_(parameters, self.grad_clip))

    def _report(self, items: Sequence[Any], what: str) -> None:
        """Log the steps that were not finite; raise when it happens repeatedly."""
        self._skipped_in_row += 1
        steps = [getattr(item, "step", item) for item in items]
        named = ", ".join(
            f"{getattr(step, 'env_id', '?')} game {getattr(step, 'episode', '?')}"
            f" turn {getattr(step, 'turn', '?')} reward {getattr(step, 'reward', '?')}"
            for step in steps[:8]
        )
        more = f" and {len(steps) - 8} more" if len(steps) > 8 else ""
        message = (
            f"update {self._step + 1}: {what} are not finite, the optimiser's step is skipped;"
            f" steps: {named}{more}"
        )
        _LOG.warning("%s", message)
        if self._skipped_in_row >= MAX_SKIPPED:
            raise NonFiniteError(f"{message}; {MAX_SKIPPED} times in a row")

    # --- keeping ------------------------------------------------------------------------------

    def save_checkpoint(self) -> Path:
        """Write the policy to `iteration-<step>` and register it with the pool."""
        folder = self._ckpt_root / f"iteration-{self._step}"
        if self._engine is not None:  # it plays with it while the files are being written
            self._engine.put_adapter(
                str(folder), copy_adapter(self.model, str(folder), self.model.dtype)
            )
            self._register(folder, None)
            return save_checkpoint(self.model, folder, self.tokenizer)
        save_checkpoint(self.model, folder, self.tokenizer)
        self._register(folder, None if self.full_parameters else read_adapter_files(folder))
        return folder

    def _register(self, folder: Path, files: Mapping[str, bytes] | None) -> None:
        if self.model_pool is not None:
            call(self.model_pool.add_checkpoint, str(folder), self._step, files)

    def remove_checkpoints(self, folders: Iterable[str]) -> None:
        """Delete checkpoints of this learner; missing ones are ignored."""
        for folder in map(Path, folders):
            if folder.parent == self._ckpt_root:
                shutil.rmtree(folder, ignore_errors=True)

    def step_counts(self) -> dict[str, int]:
        """Return the steps taken from the buffer: `trained`, and those not trained on by reason."""
        trained = self._samples_seen - self._untrained.total()
        return {"trained": trained, "stale": self._batches.stale, **self._untrained}

    def whole_step(self) -> int | None:
        """Return the learner's step; None: its last update failed and must not be saved."""
        return None if self._updating else self._step

    def save_state(self, folder: str | Path) -> None:
        plain = {
            "algorithm": type(self.algorithm).__name__,
            "algorithm_state": self.algorithm.state_dict(),
            "step": self._step,
            "samples_seen": self._samples_seen,
            "stale": self._batches.stale,
            **self._untrained,
            "skipped_in_row": self._skipped_in_row,
            "seed": self.seed,
        }
        write_state(Path(folder), gather_tensors(self._name_parameters(), self.optimizer), plain)

    def load_state(self, folder: str | Path) -> None:
        """Continue where `save_state` was called.

        Raises:
            ValueError: there is no state, or it is that of another model or algorithm.
        """
        tensors, plain = read_state(Path(folder))
        algorithm = type(self.algorithm).__name__
        if plain["algorithm"] != algorithm:
            raise ValueError(f"{folder}: the state is of {plain['algorithm']}, not {algorithm}")
        restore_tensors(tensors, self._name_parameters(), self.optimizer, str(folder))
        self.algorithm.load_state_dict(plain["algorithm_state"])
        self._step = plain["step"]
        self._samples_seen = plain["samples_seen"]
        self._batches.stale = plain["stale"]
        self._untrained = Counter({name: plain.get(name, 0) for name in self._untrained})
        self._skipped_in_row = plain["skipped_in_row"]
        self.seed = plain["seed"]

    def state_files(self) -> dict[str, bytes]:
        """Return the state as files, for callers on other machines."""
        with tempfile.TemporaryDirectory() as folder:
            self.save_state(folder)
            return {path.name: path.read_bytes() for path in Path(folder).iterdir()}

    def load_state_files(self, files: Mapping[str, bytes]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                (Path(folder) / name).write_bytes(content)
            self.load_state(folder)

    # --- parts --------------------------------------------------------------------------------

    def _group_parameters(self) -> dict[str, dict[str, Tensor]]:
        """Group trained tensors by name: the policy first, then the algorithm's modules."""
        named = self.model.named_parameters()
        groups = {"policy": {name: value for name, value in named if value.requires_grad}}
        for name, module in self.algorithm.modules().items():
            groups[name] = dict(module.named_parameters())
        return groups

    def _name_parameters(self) -> dict[str, Tensor]:
        return {
            f"{group}/{name}": parameter
            for group, parameters in self._groups.items()
            for name, parameter in parameters.items()
        }

    def _autocast(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def _step_seed(self) -> int:
        return self.seed * 1_000_003 + self._step

    @contextmanager
    def _seed_generators(self) -> Iterator[None]:
        """Seed random numbers by seed and step alone, so that no generator has to be saved."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self._step_seed())
            yield


def _choose_rate(algorithm: BaseAlgo, module: str, default: float) -> float:
    rate = algorithm.learning_rate(module)
    return default if rate is None else rate


def _choose_checkpoint_root(ckpt_root: str | Path | None, tracker: Tracker | None) -> Path:
    if ckpt_root is not None:
        return Path(ckpt_root).absolute()
    if tracker is not None:
        return Path(call(tracker.get_checkpoints_dir))
    return Path("checkpoints").absolute()


AT_LEAST_ONE = (
    "batch_size", "mini_batch_size", "save_every", "num_learners", "steps_per_batch", "epochs",
    "max_generation_len", "batch_delay_buffer", "max_train_len",
)  # fmt: skip


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise ValueError for impossible arguments of StandardLearner."""
    for name in AT_LEAST_ONE:
        number = settings.get(name)
        if number not in (None, "auto") and number < 1:
            raise ValueError(f"{name} is {number}: it must be at least 1")
    if settings.get("use_trainer_cache") and (
        settings.get("activation_checkpointing") or settings.get("gradient_checkpointing")
    ):
        raise ValueError(
            "use_trainer_cache keeps what activation_checkpointing and gradient_checkpointing"
            " throw away: choose one"
        )
    choose_dtype(settings.get("dtype", "auto"), torch.device("cpu"))
    compute_rate_factor(
        settings.get("lr_schedule", "constant"), 0, settings.get("lr_total"),
        settings.get("lr_warmup", 0), settings.get("lr_floor", 0.0),
    )  # fmt: skip
