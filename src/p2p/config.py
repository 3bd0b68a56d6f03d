"""TrainConfig and LoopConfig: the one place where a default stands."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from p2p.validation import Record

JudgeStrategy = Literal["code", "vlm", "both"]

TUNABLE_BOUNDS: dict[str, tuple[float, float]] = {
    "learning_rate": (1e-6, 3e-3),
    "ent_coef": (0.0, 0.1),
    "vf_coef": (0.1, 2.0),
    "clip_coef": (0.05, 0.4),
    "max_grad_norm": (0.1, 5.0),
    "gae_lambda": (0.8, 1.0),
    "gamma": (0.8, 0.9999),
    "num_steps": (8, 8192),
    "update_epochs": (1, 20),
    "num_minibatches": (1, 1024),
    "target_kl": (0.001, 0.1),
    "total_timesteps": (1_000, 1_000_000_000),
    "reward_clip": (1.0, 50.0),
    "obs_clip": (1.0, 50.0),
    "max_episode_steps": (10, 100_000),
    "training_horizon": (10, 100_000),
    "log_std_init": (-3.0, 1.0),
    "updates_per_step": (0.05, 4.0),
    "replay_batch_size": (32, 2048),
}
"""What a revision may move a value to. Every preset lies inside; a test holds them together."""

TUNABLE_UNBOUNDED = ("net_arch", "normalize_obs", "normalize_reward", "observe_time")
TUNABLE = (*TUNABLE_BOUNDS, *TUNABLE_UNBOUNDED)
"""Of all algorithms; `TrainConfig.tunable` are those of one."""

ALGORITHM_FIELDS: dict[str, frozenset[str]] = {
    "ppo": frozenset({
        "num_minibatches", "update_epochs", "gae_lambda", "clip_coef", "clip_vloss", "norm_adv",
        "ent_coef", "vf_coef", "max_grad_norm", "target_kl", "activation", "ortho_init",
        "log_std_init",
    }),
    "sac": frozenset({"updates_per_step", "replay_batch_size", "replay_size"}),
}  # fmt: skip
"""What an algorithm alone uses; for the others it stays at its default."""


ENGINE_PREFIXES = {"Mjlab-": "mjlab", "Isaac-": "isaaclab", "IsaacContrib-": "isaaclab"}
"""How the ids of each engine begin that is installed apart; all others are Gymnasium's."""


def engine_of(env_id: str) -> str:
    """The engine that an id belongs to."""
    return next((name for start, name in ENGINE_PREFIXES.items() if env_id.startswith(start)),
                "mujoco")  # fmt: skip


class ConfigurationError(ValueError):
    """The configuration asks for something that does not exist."""


Seed = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass(frozen=True, slots=True)
class EnvOptions:
    """How environments are made, on every engine; None leaves a setting as it is registered."""

    env_id: str
    max_episode_steps: int | None = None
    terminate_when_unhealthy: bool | None = None
    """False: episodes end at their time limit only."""
    observe_time: bool = False
    """Whether the share of the episode that has passed stands last in the observation."""
    side_info: bool = False
    """Whether the simulator's state is asked for in every step: by a reward, or to record it."""
    quantities: Collection[str] = ()
    """Those of QUANTITIES that stand in the info of every step, as far as the robot has them."""
    num_threads: int = 1
    """Of MuJoCo's batch; 0 takes the cores this process may use."""
    training: bool = False
    """Of an engine: whether observations are as noisy as it makes them for training, and its own
    rewards left out."""
    device: str = "cpu"
    seed: int = 0
    """Of an engine's generators, before a reset gives them one."""


class TrainConfig(BaseModel):
    """How one training run is done. Every field is used; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    # What is trained, and where.
    env_id: Annotated[str, Field(min_length=1)] = "HalfCheetah-v5"
    engine: Literal["mujoco", "mjlab", "isaaclab"] = "mujoco"
    """The simulator; it follows from the id, so it may be left out."""
    iteration_id: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,127})?$")] = ""
    """The name of its folder."""
    seed: Seed = 1
    algorithm: Literal["ppo", "sac"] = "ppo"
    """`sac` learns more from a step and takes longer over it."""
    backend: Literal["auto", "fast", "sb3", "rsl_rl"] = "auto"
    """`fast`: our PPO and SAC. `sb3`: Stable-Baselines3's PPO. `rsl_rl`: PPO on a GPU simulator.
    `auto`: `rsl_rl` for a GPU simulator, else `fast`."""
    device: str = "auto"
    """Where Stable-Baselines3 or a GPU simulator runs (the fast backend is a CPU program)."""
    torch_deterministic: bool = True

    # Environment.
    num_envs: Annotated[int, Field(ge=1, le=65_536)] = 8
    num_threads: Annotated[int, Field(ge=0, le=256)] = 0
    """Simulation threads; 0 takes the cores this process may use."""
    max_episode_steps: Annotated[int, Field(ge=1)] | None = None
    """None: the horizon the environment is registered with."""
    training_horizon: Annotated[int, Field(ge=1)] | None = None
    """Steps of an episode in training; evaluation and judging keep max_episode_steps. None: those.
    A short one starts anew more often, which helps where a failure does not end the episode."""
    terminate_when_unhealthy: bool | None = None
    """None: as the environment is registered."""
    observe_time: bool = False
    """Let the policy see the time: the share of the episode that has passed, 0 to 1, stands last in
    the observation. For what changes as it goes on, such as "run, then stop"."""
    side_info: bool = True
    """Give the reward the environment's quantities, `mj_model` and `mj_data` in info."""

    # SAC; of what follows it uses num_steps (between two reports) and what is not in
    # ALGORITHM_FIELDS["ppo"].
    updates_per_step: Annotated[float, Field(gt=0, le=16)] = 0.25
    replay_batch_size: Annotated[int, Field(ge=8, le=65_536)] = 256
    replay_size: Annotated[int, Field(ge=10_000, le=10_000_000)] = 400_000
    """Past steps kept to learn from, as far as they fit into 1 GiB."""

    # PPO.
    total_timesteps: Annotated[int, Field(ge=1, lt=1 << 53)] = 1_000_000
    num_steps: Annotated[int, Field(ge=1)] = 256
    num_minibatches: Annotated[int, Field(ge=1)] = 32
    update_epochs: Annotated[int, Field(ge=1)] = 10
    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.99
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    clip_coef: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_vloss: bool = False
    norm_adv: bool = True
    ent_coef: Annotated[float, Field(ge=0)] = 0.0
    vf_coef: Annotated[float, Field(ge=0)] = 0.5
    max_grad_norm: Annotated[float, Field(gt=0)] = 0.5
    target_kl: Annotated[float, Field(gt=0)] | None = None
    """Stop an update early when the KL divergence passes 1.5 times this; `rsl_rl` moves its
    learning rate to stay near it."""
    net_arch: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = (64, 64)
    activation: Literal["tanh", "relu", "elu"] = "tanh"
    ortho_init: bool = True
    log_std_init: float = 0.0
    normalize_obs: bool = True
    normalize_reward: bool = True
    obs_clip: Annotated[float, Field(gt=0)] = 10.0
    reward_clip: Annotated[float, Field(gt=0)] = 10.0

    # Measuring.
    num_evals: Annotated[int, Field(ge=1, le=1000)] = 4
    num_eval_envs: Annotated[int, Field(ge=0, le=1024)] = 0
    """Evaluation episodes side by side; 0 takes num_envs."""
    num_eval_rounds: Annotated[int, Field(ge=1, le=100)] = 3
    checkpoint_interval: Annotated[int, Field(ge=1)] = 100_000
    """Steps between the states that a killed run resumes from."""
    judgment_select: Literal["last", "best"] = "last"
    """Which evaluated checkpoint stands for the run."""
    reward_term_avg_window: Annotated[int, Field(ge=1)] = 25
    """Episodes that the training returns and terms are averaged over."""
    trajectory_stride: Annotated[int, Field(ge=1)] = 1
    """Keep every n-th step of a recorded trajectory."""

    @model_validator(mode="before")
    @classmethod
    def _read_engine_from_id(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(env_id := values.get("env_id"), str):
            known, engine = engine_of(env_id), values.get("engine", "mujoco")
            if engine not in ("mujoco", known):
                raise ValueError(f"engine {engine!r} has no {env_id}, which is of {known}")
            return {**values, "engine": known}
        return values

    @field_validator("*", mode="before")
    @classmethod
    def _reject_bool_as_number(cls, value: object, info: ValidationInfo) -> object:
        annotation = cls.model_fields[info.field_name or ""].annotation
        may_be_bool = annotation is bool or bool in get_args(annotation)
        parts = value if isinstance(value, list | tuple) else (value,)
        if not may_be_bool and any(isinstance(part, bool) for part in parts):
            raise ValueError(f"{value} is not a value for this field")
        return value

    @field_validator("net_arch", mode="before")
    @classmethod
    def _expand_single_width(cls, value: object) -> object:
        return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _check_idle_fields(self) -> Self:
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        idle = [name for name in self._idle_fields if getattr(self, name) != defaults[name]]
        if idle:
            raise ValueError(
                f"{', '.join(sorted(idle))}: no effect with algorithm {self.algorithm!r}; leave it "
                f"out. Its hyperparameters are {', '.join(self.tunable)}"
            )
        return self

    @model_validator(mode="after")
    def _check_minibatch_size(self) -> Self:
        if self.algorithm == "ppo" and self.norm_adv and self.minibatch_size == 1:
            raise ValueError(
                f"num_minibatches={self.num_minibatches} leaves one step in a minibatch, whose "
                "advantage cannot be normalised: use fewer, or norm_adv=false"
            )
        return self

    @model_validator(mode="after")
    def _check_minibatches(self) -> Self:
        if self.algorithm == "ppo" and self.batch_size % self.num_minibatches:
            raise ValueError(
                f"num_minibatches={self.num_minibatches} must divide num_envs * num_steps = "
                f"{self.num_envs} * {self.num_steps} = {self.batch_size}"
            )
        return self

    @property
    def batch_size(self) -> int:
        """Steps in one rollout of all environments."""
        return self.num_envs * self.num_steps

    @property
    def minibatch_size(self) -> int:
        return self.batch_size // self.num_minibatches

    @property
    def num_iterations(self) -> int:
        """Rollouts, each with its update; the last one reaches or passes total_timesteps."""
        return -(-self.total_timesteps // self.batch_size)

    @property
    def _idle_fields(self) -> frozenset[str]:
        others = (fields for name, fields in ALGORITHM_FIELDS.items() if name != self.algorithm)
        return frozenset().union(*others)

    @property
    def tunable(self) -> tuple[str, ...]:
        """Of TUNABLE, what this algorithm uses."""
        return tuple(name for name in TUNABLE if name not in self._idle_fields)

    @property
    def eval_envs(self) -> int:
        return self.num_eval_envs or self.num_envs

    def env_options(self, *, training: bool = False) -> EnvOptions:
        """How to make this configuration's environments; in training with the training horizon."""
        return EnvOptions(
            self.env_id,
            max_episode_steps=(training and self.training_horizon) or self.max_episode_steps,
            terminate_when_unhealthy=self.terminate_when_unhealthy,
            observe_time=self.observe_time,
            side_info=self.side_info,
            num_threads=self.num_threads,
            training=training,
            device=self.device,
            seed=self.seed,
        )

    def to_json(self) -> str:
        return self.model_dump_json(indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read config.json; raises pydantic.ValidationError naming each bad field."""
        return cls.model_validate_json(text)

    def differences(self, other: TrainConfig) -> list[str]:
        """The fields whose values differ."""
        return [
            name for name in type(self).model_fields if getattr(self, name) != getattr(other, name)
        ]

    def with_updates(self, **changes: Any) -> Self:
        """A checked copy with these fields changed; another algorithm has its own defaults."""
        before = self.model_dump()
        if changes.get("algorithm", self.algorithm) != self.algorithm:
            before = {n: v for n, v in before.items() if n not in ALGORITHM_FIELDS[self.algorithm]}
        return type(self).model_validate({**before, **changes})

    def in_environment(self, env_id: str) -> Self:
        """This configuration for an environment; another one keeps its own time limit."""
        if env_id == self.env_id:
            return self
        limits = dict.fromkeys(
            ("max_episode_steps", "training_horizon", "terminate_when_unhealthy")
        )
        return self.with_updates(env_id=env_id, engine="mujoco", **limits)

    def apply_updates(self, updates: dict[str, Any]) -> tuple[Self, list[str]]:
        """A copy with a revision's hyperparameters, and what had to be refused or changed.

        Only the `tunable` fields may be changed, and numbers stay within TUNABLE_BOUNDS. A value
        that the configuration already has is always kept as it is, and so is one whose new value
        makes no sense. num_minibatches gives way where it no longer divides the batch.
        """
        notes: list[str] = []
        accepted: dict[str, Any] = {}
        for name, value, problem in self._check_updates(updates):
            if value is not None or not problem:
                accepted[name] = value
            if problem:
                left = f"refused, left at {getattr(self, name, 'unset')}"
                notes.append(f"{problem}; {left if value is None else f'clamped to {value}'}")
        if self.algorithm == "ppo":
            minibatches = accepted.get("num_minibatches", self.num_minibatches)
            batch = self.num_envs * accepted.get("num_steps", self.num_steps)
            fitting = _largest_divisor(batch, at_most=minibatches, smallest_part=1 + self.norm_adv)
            if fitting != minibatches:
                notes.append(
                    f"num_minibatches={minibatches} does not fit {batch} steps; {fitting} does"
                )
                accepted["num_minibatches"] = fitting
        return self.with_updates(**accepted), notes

    def tuning_problems(self, updates: dict[str, Any]) -> list[str]:
        """Return why a revision's hyperparameters cannot be taken as they are, a sentence each."""
        return [problem for _, _, problem in self._check_updates(updates) if problem]

    def _check_updates(self, updates: dict[str, Any]) -> Iterator[tuple[str, Any, str]]:
        """Yield each change's name, the value to take, and what is wrong with it, if anything.

        A value that the configuration already has is no change. With a problem, the value is the
        nearest in range, or None where there is none to take.
        """
        for name, value in updates.items():
            if name not in self.tunable:
                why = (
                    f"has no effect with algorithm {self.algorithm!r}"
                    if name in self._idle_fields
                    else "cannot be tuned"
                )
                yield name, None, f"{name} {why}; there are {', '.join(self.tunable)}"
                continue
            current = getattr(self, name)
            if value == current and isinstance(value, bool) == isinstance(current, bool):
                continue
            try:
                tuned = self._clamp_update(name, value)
            except ValueError as error:
                reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
                yield name, None, f"{name}={value!r} is not valid: {reason}"
                continue
            problem, (low, high) = "", TUNABLE_BOUNDS.get(name, (0.0, 0.0))
            if name in TUNABLE_BOUNDS and tuned is not None and not low <= float(value) <= high:
                problem = f"{name}={value!r} is out of range: choose from {low:g} to {high:g}"
            yield name, tuned, problem

    def _clamp_update(self, name: str, value: Any) -> Any:
        """A revision's value, checked and clamped; raises ValueError if there is no sense in it."""
        if name in TUNABLE_BOUNDS and value is not None:
            if isinstance(value, str):
                value = float(value)
            if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
                raise ValueError("not a number")
            low, high = TUNABLE_BOUNDS[name]
            value = min(max(value, low), high)
        return getattr(self.alone(name, value), name)

    def alone(self, name: str, value: Any) -> TrainConfig:
        """A configuration with this field for the same algorithm, whatever the others are."""
        probe: dict[str, Any] = {"algorithm": self.algorithm}
        if self.algorithm == "ppo":
            probe |= {"norm_adv": False, "num_minibatches": 1}
        if name == "num_minibatches":
            probe["num_steps"] = value  # a batch that it divides: the real one is looked at later
        return TrainConfig.model_validate({**probe, name: value})


def _largest_divisor(batch: int, *, at_most: int, smallest_part: int) -> int:
    """The largest number of equal parts of a batch, each of at least `smallest_part` steps."""
    highest = min(at_most, batch // smallest_part)
    return next((n for n in range(highest, 0, -1) if batch % n == 0), 1)


class RunConfigEntry(Record):
    """One configuration of an iteration: what it changes against the base TrainConfig."""

    config_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    label: str = ""
    params: dict[str, Any] = Field(default_factory=dict)


VisualCriterion = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=500, pattern=r"^[^@]"),
]


class LoopConfig(BaseModel):
    """How a session goes from a prompt to a policy. Every field is used."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    train: TrainConfig = TrainConfig()
    """The base of every run; its env_id is the session's."""
    configs: Annotated[tuple[RunConfigEntry, ...], Field(min_length=1)] = (
        RunConfigEntry(config_id="base"),
    )
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (1,)
    max_iterations: Annotated[int, Field(ge=1, le=1000)] = 5
    candidates: Annotated[int, Field(ge=0, le=16)] = 0
    """Rewards that an iteration writes and chooses from; 0: by cores and steps, see `p2p.session`.
    With one, its reward is trained as it is."""
    pass_threshold: Annotated[float, Field(gt=0, le=1)] = 0.8
    """What the score and every `task` criterion must reach, here and on held-out seeds."""

    # Models.
    model: str = ""
    """`provider:model`; empty: the first provider whose key is set, else `builtin`."""
    vlm_model: str = ""
    """Who looks at the frames; empty: nobody does."""
    thinking_effort: Literal["", "off", "minimal", "low", "medium", "high", "xhigh", "max"] = (
        "medium"
    )
    """Of who writes rewards, judges and revisions; empty: whatever the model does by itself."""
    budget_usd: Annotated[float, Field(ge=0)] | None = None
    max_minutes: Annotated[float, Field(gt=0)] | None = None
    """How long it may be worked on, all its processes together; None: as long as it takes."""
    review_reward: bool = True
    review_judge: bool = True
    use_zoo_preset: bool = False
    """`loop_config` made `train` of the environment's tuned preset, not of its quick settings."""
    hp_tuning: bool = True
    """A revision may change hyperparameters, too."""
    fixed: tuple[str, ...] = ()
    """TrainConfig fields that the user has set: no revision moves them."""

    # Judging.
    use_code_judge: bool = True
    judge_episodes: Annotated[int, Field(ge=1, le=100)] = 8
    confirm_episodes: Annotated[int, Field(ge=1, le=1000)] = 16
    """Held-out seeds on which a pass is confirmed."""
    judge_every_checkpoint: bool = False
    """Let the VLM judge early checkpoints, too; the code judge always does, it is free."""
    refined_initial_frame: bool = True
    """Show the VLM the first frame with the names of the bodies and the axes, before the others."""
    motion_trail: bool = False
    """Show the VLM one more picture: poses of the whole episode over one background."""
    visual_criteria: Annotated[tuple[VisualCriterion, ...], Field(max_length=10)] = ()
    """What the VLM must see in the videos, beside the other criteria: no pass without it."""

    # Where it runs.
    train_full: bool = False
    """Train to the last step also after a checkpoint holds on held-out seeds."""
    trainer: Literal["local", "scheduled"] = "local"
    """`scheduled`: the runs of an iteration are spread over the scheduler's nodes."""
    max_parallel: Annotated[int, Field(ge=0)] = 0
    cores_per_run: Annotated[int, Field(ge=0)] = 0
    wait_for_cores: bool = True
    """Else runs start at once, on cores that others hold, where too few are free."""
    videos: bool = True
    trackers: tuple[Literal["wandb", "trackio", "tensorboard"], ...] = ()
    """Where the metrics of every training go besides its files, which TensorBoard reads."""

    @model_validator(mode="after")
    def _check_run_names(self) -> Self:
        names = [entry.config_id for entry in self.configs]
        for field, values in (("configs", names), ("seeds", self.seeds)):
            if len(set(values)) < len(values):
                raise ValueError(f"{field}: {', '.join(map(str, values))}: each only once")
        return self

    @model_validator(mode="after")
    def _check_judges(self) -> Self:
        if not self.use_code_judge and not self.vlm_model:
            raise ValueError("no judge: set use_code_judge or vlm_model")
        if self.visual_criteria and not self.vlm_model:
            raise ValueError("visual_criteria: they need a vision model: set vlm_model")
        return self

    @model_validator(mode="after")
    def _check_candidates(self) -> Self:
        if self.candidates > 1 and not self.use_code_judge:
            raise ValueError("candidates: they need the code judge: set use_code_judge")
        return self

    @property
    def strategy(self) -> JudgeStrategy:
        if not self.vlm_model:
            return "code"
        return "both" if self.use_code_judge else "vlm"
