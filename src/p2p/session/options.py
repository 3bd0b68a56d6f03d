"""The options of a session: their names, flags and help, the same wherever one is started.

Plain data, so that `p2p --help` need not load what a session needs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """A field of `SessionRequest`, and how it is given on a command line."""

    field: str
    flag: str
    help: str
    metavar: str = ""
    kind: type = str
    short: str = ""
    older: tuple[str, ...] = ()
    """Names of earlier versions: accepted, and not shown."""
    default: str = ""
    """As help shows it."""
    panel: str | None = None
    """Where help shows it."""


TRAINING, MODELS, JUDGING, SWITCHES = "Training", "Models and budget", "Judging", "On or off"
OPTIONS = (
    Option(
        "env_id", "--env", "Environment; `p2p envs` lists them.", "ID", short="-e",
        default="chosen from the prompt", panel=TRAINING,
    ),
    Option(
        "model", "--model", "Language model.", "MODEL", short="-m",
        default="first provider with a key, else builtin", panel=MODELS,
    ),
    Option(
        "vlm_model", "--vlm", "Model that judges the videos.", "MODEL",
        older=("--vlm-model",), default="none", panel=MODELS,
    ),
    Option(
        "max_iterations", "--iterations", "Maximum number of iterations.", "N", int, short="-n",
        older=("--max-iterations",), default="5", panel=TRAINING,
    ),
    Option(
        "total_timesteps", "--steps", "Environment steps of each run.", "N", int,
        older=("--timesteps", "--total-timesteps"), default="by environment", panel=TRAINING,
    ),
    Option(
        "configs", "--configs", "Hyperparameter settings side by side.", "N", int,
        older=("--num-configs",), default="1", panel=TRAINING,
    ),
    Option(
        "seeds", "--seeds", "Number of seeds, or a list: 1,5,7.", "N|LIST",
        default="1", panel=TRAINING,
    ),
    Option(
        "candidates", "--candidates", "Rewards an iteration chooses from; 0: chosen.", "N", int,
        default="0", panel=TRAINING,
    ),
    Option(
        "pass_threshold", "--threshold", "Score per hard criterion.", "0..1", float,
        older=("--pass-threshold",), default="0.8", panel=JUDGING,
    ),
    Option(
        "use_zoo_preset", "--zoo-preset/--no-zoo-preset",
        "RL Zoo's preset: longer runs.", kind=bool,
        older=("--use-zoo-preset",), default="off", panel=SWITCHES,
    ),
    Option(
        "hp_tuning", "--hp-tuning/--no-hp-tuning", "Revise hyperparameters, too.",
        kind=bool, default="on", panel=SWITCHES,
    ),
    Option(
        "thinking_effort", "--thinking", "Of authors: off, minimal, low, medium, high, xhigh, max.",
        "EFFORT", older=("--thinking-effort",), default="medium", panel=MODELS,
    ),
    Option(
        "use_code_judge", "--code-judge/--no-code-judge", "Off: only the VLM judges.", kind=bool,
        older=("--use-code-judge",), default="on", panel=SWITCHES,
    ),
    Option(
        "review_reward", "--review-reward/--no-review-reward", "Review each reward.",
        kind=bool, default="on", panel=SWITCHES,
    ),
    Option(
        "review_judge", "--review-judge/--no-review-judge", "Review each judge.",
        kind=bool, default="on", panel=SWITCHES,
    ),
    Option(
        "refined_initial_frame", "--initial-frame/--no-initial-frame", "VLM: parts are named.",
        kind=bool, older=("--refined-initial-frame",), default="on", panel=SWITCHES,
    ),
    Option(
        "motion_trail", "--motion-trail/--no-motion-trail", "VLM: all poses at once.",
        kind=bool, older=("--motion-trail-dual",), default="off", panel=SWITCHES,
    ),
    Option(
        "visual_criteria", "--visual-criteria", "Must be seen; or @FILE.", "TEXT",
        list, default="none", panel=JUDGING,
    ),
    Option(
        "judge_episodes", "--judge-episodes", "Episodes a run is judged on.", "N", int,
        default="8", panel=JUDGING,
    ),
    Option(
        "confirm_episodes", "--confirm-episodes", "Held-out seeds that confirm a pass.", "N", int,
        default="16", panel=JUDGING,
    ),
    Option(
        "cores_per_run", "--cores-per-run", "Cores of each run; 0: chosen.", "N", int,
        default="0", panel=TRAINING,
    ),
    Option(
        "budget_usd", "--budget-usd", "Maximum spent on models.", "USD", float,
        default="no limit", panel=MODELS,
    ),
    Option(
        "max_minutes", "--max-minutes", "Maximum working time.", "MINUTES", float,
        default="no limit", panel=TRAINING,
    ),
    Option(
        "settings", "--set", "A field of TrainConfig or LoopConfig.", "FIELD=VALUE",
        list, default="none", panel=TRAINING,
    ),
    Option(
        "videos", "--videos/--no-videos", "Render evaluation episodes.", kind=bool,
        default="on", panel=SWITCHES,
    ),
)  # fmt: skip

ALIASES = {
    name.split("/")[0].removeprefix("--").replace("-", "_"): option.field
    for option in OPTIONS
    for name in (option.flag, *option.older)
    if option.field not in ("env_id", "settings")
}
"""Other names of fields, as flags have them: `steps` is `total_timesteps`."""
REPEATABLE = frozenset(option.field for option in OPTIONS if option.kind is list)
"""Fields whose flag is given once for each of their values."""
