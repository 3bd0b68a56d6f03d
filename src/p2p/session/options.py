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
    Option("budget_usd", "--budget-usd", "Maximum spent on models.", "USD", float),
    Option("max_minutes", "--max-minutes", "Maximum working time, in total.", "MINUTES", float),
    Option(
        "settings", "--set", "Set a TrainConfig or LoopConfig field; repeatable.", "FIELD=VALUE"
    ),
    Option("videos", "--videos/--no-videos", "Render evaluation episodes.", kind=bool),
)

ALIASES = {
    name.removeprefix("--").replace("-", "_"): option.field
    for option in OPTIONS
    for name in (option.flag, *option.older)
    if option.field not in ("env_id", "settings", "videos")
}
"""Other names of fields, as flags have them: `steps` is `total_timesteps`."""
