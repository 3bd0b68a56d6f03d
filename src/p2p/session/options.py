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


OPTIONS = (
    Option("env_id", "--env", "Environment (default: chosen from the prompt).", "ID", short="-e"),
    Option(
        "model",
        "--model",
        "Language model (default: the first provider with a key, else `builtin`).",
        "PROVIDER:MODEL",
        short="-m",
    ),
    Option(
        "vlm_model",
        "--vlm",
        "Model that judges the videos (default: none).",
        "PROVIDER:MODEL",
        older=("--vlm-model",),
    ),
    Option(
        "max_iterations",
        "--iterations",
        "Maximum number of iterations.",
        "N",
        int,
        short="-n",
        older=("--max-iterations",),
    ),
    Option(
        "total_timesteps",
        "--steps",
        "Environment steps of each training run.",
        "N",
        int,
        older=("--timesteps", "--total-timesteps"),
    ),
    Option(
        "configs",
        "--configs",
        "Hyperparameter settings to try side by side.",
        "N",
        int,
        older=("--num-configs",),
    ),
    Option("seeds", "--seeds", "Number of training seeds, or a list: 3, or 1,5,7.", "N|LIST"),
    Option(
        "pass_threshold",
        "--threshold",
        "Score that passes.",
        "0..1",
        float,
        older=("--pass-threshold",),
    ),
    Option(
        "use_zoo_preset",
        "--zoo-preset/--no-zoo-preset",
        "Train with the environment's preset of RL Baselines3 Zoo: longer runs.",
        kind=bool,
        older=("--use-zoo-preset",),
    ),
    Option(
        "hp_tuning",
        "--hp-tuning/--no-hp-tuning",
        "Revisions may change hyperparameters.",
        kind=bool,
    ),
    Option(
        "thinking_effort",
        "--thinking",
        "How much a model thinks first: minimal, low, medium, high, xhigh or max.",
        "EFFORT",
        older=("--thinking-effort",),
    ),
    Option(
        "use_code_judge",
        "--code-judge/--no-code-judge",
        "Judge by code; without it, only the VLM judges.",
        kind=bool,
        older=("--use-code-judge",),
    ),
    Option(
        "review_reward",
        "--review-reward/--no-review-reward",
        "Have each reward reviewed.",
        kind=bool,
    ),
    Option(
        "review_judge",
        "--review-judge/--no-review-judge",
        "Have each judge reviewed.",
        kind=bool,
    ),
    Option(
        "refined_initial_frame",
        "--refined-initial-frame/--no-refined-initial-frame",
        "Show the VLM the first frame with the bodies named.",
        kind=bool,
    ),
    Option(
        "motion_trail",
        "--motion-trail/--no-motion-trail",
        "Show the VLM the poses of the whole episode in one picture.",
        kind=bool,
        older=("--motion-trail-dual",),
    ),
    Option(
        "visual_criteria",
        "--visual-criteria",
        "What the VLM must see; repeatable. @FILE: one on each line.",
        "TEXT|@FILE",
        list,
    ),
    Option("judge_episodes", "--judge-episodes", "Episodes a run is judged on.", "N", int),
    Option(
        "confirm_episodes",
        "--confirm-episodes",
        "Held-out seeds on which a pass is confirmed.",
        "N",
        int,
    ),
    Option("cores_per_run", "--cores-per-run", "Cores of each training run; 0: chosen.", "N", int),
    Option("budget_usd", "--budget-usd", "Maximum spent on models.", "USD", float),
    Option("max_minutes", "--max-minutes", "Maximum working time, in total.", "MINUTES", float),
    Option(
        "settings",
        "--set",
        "Set a TrainConfig or LoopConfig field; repeatable.",
        "FIELD=VALUE",
        list,
    ),
    Option("videos", "--videos/--no-videos", "Render evaluation episodes.", kind=bool),
)

ALIASES = {
    name.split("/")[0].removeprefix("--").replace("-", "_"): option.field
    for option in OPTIONS
    for name in (option.flag, *option.older)
    if option.field not in ("env_id", "settings")
}
"""Other names of fields, as flags have them: `steps` is `total_timesteps`."""
REPEATABLE = frozenset(option.field for option in OPTIONS if option.kind is list)
"""Fields whose flag is given once for each of their values."""
