"""Files of the public Prompt2Policy, as ours: its configurations, and what its sessions came to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from p2p.contracts import JudgeStrategy, JudgmentResult, Score, SessionResult, StatusLiteral
from p2p.files import read_model

if TYPE_CHECKING:
    from pathlib import Path

NO_FIELDS_HERE = frozenset({
    "batch_size", "minibatch_size", "num_iterations", "sac", "eval_interval",
    "parallel_eval", "trajectory_precision",
})  # fmt: skip
"""Of its config.json: derived from others, or read by nothing. They tell whose file it is."""
WITHOUT_EFFECT_THERE = frozenset({
    "algorithm", "norm_adv", "clip_vloss", "checkpoint_interval", "reward_term_avg_window",
})  # fmt: skip
"""It writes them and trains as if they were not there; here they do something."""
OF_ITS_LOOP = frozenset({
    "runs_dir", "cores_pool", "gpu_pool", "no_cpu_affinity",
    "criteria_diagnosis", "skip_vram_scaling", "elaborated_intent",
})  # fmt: skip


def train_fields(fields: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The fields of a config.json that are ours, and a note of what was left out; empty if nothing.

    A file of our own stays as it is, whatever is wrong with it.
    """
    if not NO_FIELDS_HERE & fields.keys():
        return dict(fields), ""
    dropped = [name for name in fields if name in NO_FIELDS_HERE | WITHOUT_EFFECT_THERE]
    return {n: v for n, v in fields.items() if n not in dropped}, _note(dropped)


def loop_fields(fields: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The same for a session_config.json; the prompt, where it has one, is left in."""
    train = fields.get("train")
    whole, note = train_fields(train) if isinstance(train, Mapping) else (None, "")
    if not note and not (OF_ITS_LOOP | NO_FIELDS_HERE) & fields.keys():
        return dict(fields), ""
    dropped = [n for n in fields if n in OF_ITS_LOOP | NO_FIELDS_HERE | WITHOUT_EFFECT_THERE]
    options = {name: value for name, value in fields.items() if name not in dropped}
    if whole is not None:
        if "judgment_select" in options:
            whole["judgment_select"] = options.pop("judgment_select")
        options["train"] = whole
    return options, "; ".join(filter(None, (_note(dropped), note and f"train: {note}")))


def _note(dropped: list[str]) -> str:
    names = ", ".join(dropped)
    return f"left out, as they have no effect or are derived: {names}" if dropped else ""


# --- sessions -------------------------------------------------------------------------------------


def _clip_share(value: object) -> object:
    return min(max(value, 0.0), 1.0) if isinstance(value, int | float) else value


class _Foreign(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class UpstreamJudgment(_Foreign):
    """judgment.json, and the judgment of an iteration in loop_history.json."""

    intent_score: Annotated[Score, BeforeValidator(_clip_share)]
    passed: bool
    diagnosis: str = ""
    failure_tags: tuple[str, ...] = ()
    scoring_method: str = ""
    best_checkpoint: str | int = ""

    def as_ours(self) -> JudgmentResult:
        step = str(self.best_checkpoint)
        return JudgmentResult(
            intent_score=self.intent_score,
            passed=self.passed and not self.failure_tags,
            diagnosis=self.diagnosis,
            failure_tags=self.failure_tags,
            strategy=_STRATEGIES.get(self.scoring_method, "both"),
            step=int(step) if re.fullmatch("[0-9]{1,18}", step) else None,
        )


_STRATEGIES: Mapping[str, JudgeStrategy] = {"vlm": "vlm", "code_judge": "code"}


class UpstreamIteration(_Foreign):
    iteration: int
    judgment: UpstreamJudgment | None = None


class UpstreamHistory(_Foreign):
    """loop_history.json: a session and how it ended."""

    prompt: str
    env_id: str = ""
    status: StatusLiteral
    iterations: tuple[UpstreamIteration, ...] = ()
    best_iteration: int = 0
    best_score: Annotated[Score, BeforeValidator(_clip_share)] = 0.0
    error: str = ""

    @property
    def judgments(self) -> dict[int, JudgmentResult]:
        judged = ((each.iteration, each.judgment) for each in self.iterations)
        return {number: judgment.as_ours() for number, judgment in judged if judgment}

    def result(self) -> SessionResult:
        judged = bool(self.judgments)
        return SessionResult(
            status=self.status,
            message=self.error,
            best_iteration=self.best_iteration if judged else None,
            score=self.best_score if judged else None,
            iterations=len(self.iterations),
        )


def read_judgment(path: Path) -> JudgmentResult | None:
    """A judgment.json of either program; None if it is absent or unreadable."""
    ours = read_model(path, JudgmentResult)
    if ours is not None:
        return ours
    theirs = read_model(path, UpstreamJudgment)
    return theirs.as_ours() if theirs else None
