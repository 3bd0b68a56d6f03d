"""Where the files of an iteration lie."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_TRAJECTORY = re.compile(r"trajectory_(\d+)(?:_(\w+))?\.npz")


def names(folder: Path) -> list[str]:
    """The names in a folder; none if it is not there or may not be read."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


@dataclass(frozen=True)
class IterationPaths:
    """runs/session_xxx/iter_N/, or one run inside a loop iteration."""

    path: Path

    @property
    def iteration_id(self) -> str:
        """The name of the folder."""
        return self.path.name

    @property
    def config_path(self) -> Path:
        """config.json."""
        return self.path / "config.json"

    @property
    def reward_fn_path(self) -> Path:
        """reward_fn.py."""
        return self.path / "reward_fn.py"

    @property
    def reward_spec_path(self) -> Path:
        """reward_spec.json."""
        return self.path / "reward_spec.json"

    @property
    def summary_path(self) -> Path:
        """summary.json."""
        return self.path / "summary.json"

    @property
    def scalars_path(self) -> Path:
        """metrics/scalars.jsonl."""
        return self.path / "metrics" / "scalars.jsonl"

    @property
    def trajectory_path(self) -> Path:
        """The latest trajectory_*.npz, the median episode where there is a choice.

        Without one, the place of the older trajectory.jsonl, which may not exist either.
        """
        found = [
            ((int(match[1]), match[2] == "median", name), self.path / name)
            for name in names(self.path)
            if (match := _TRAJECTORY.fullmatch(name))
        ]
        return max(found)[1] if found else self.path / "trajectory.jsonl"

    @property
    def prompt_path(self) -> Path:
        """prompt.txt."""
        return self.path / "prompt.txt"

    @property
    def videos_dir(self) -> Path:
        """videos/."""
        return self.path / "videos"

    @property
    def checkpoints_dir(self) -> Path:
        """checkpoints/, with step_<step>/ for each evaluated step."""
        return self.path / "checkpoints"

    @property
    def work_dir(self) -> Path:
        """work/, the only folder that the sandboxed trainer may write to: do not trust it."""
        return self.path / "work"

    @property
    def judgment_path(self) -> Path:
        """judgment.json."""
        return self.path / "judgment.json"

    @property
    def revised_reward_path(self) -> Path:
        """reward_fn_revised.py."""
        return self.path / "reward_fn_revised.py"

    @property
    def aggregation_path(self) -> Path:
        """aggregation.json, in a loop iteration."""
        return self.path / "aggregation.json"

    @property
    def plan_path(self) -> Path:
        """plan.json, in a loop iteration."""
        return self.path / "plan.json"

    @property
    def reward_path(self) -> Path:
        """reward.json, in a loop iteration: the reward and how it came to be."""
        return self.path / "reward.json"

    @property
    def judge_path(self) -> Path:
        """judge.json, in a loop iteration from which on other criteria count."""
        return self.path / "judge.json"

    @property
    def best_run_path(self) -> Path:
        """best_run.json, in a loop iteration."""
        return self.path / "best_run.json"

    @property
    def confirmation_path(self) -> Path:
        """confirmation.json, in a loop iteration whose score passed."""
        return self.path / "confirmation.json"

    @property
    def revision_path(self) -> Path:
        """revision.json, in a loop iteration that another one follows."""
        return self.path / "revision.json"

    @property
    def steering_path(self) -> Path:
        """steering.json: the orders taken after this iteration."""
        return self.path / "steering.json"

    @property
    def streaming_dir(self) -> Path:
        """streaming_judgments/, with <step>.json for each early checkpoint that was judged."""
        return self.path / "streaming_judgments"

    def trajectory_file(self, step: int, label: str) -> Path:
        """Where the trajectory of an evaluation episode lies."""
        return self.path / f"trajectory_{step}_{label}.npz"

    @property
    def status_path(self) -> Path:
        """status.json."""
        return self.path / "status.json"

    @property
    def events_path(self) -> Path:
        """events.jsonl."""
        return self.path / "events.jsonl"


def step_of(line: dict[str, Any]) -> int | None:
    """The training step that a line of scalars.jsonl belongs to."""
    step = line.get("global_step")
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    return step if isinstance(step, int) and not isinstance(step, bool) and step >= 0 else None
