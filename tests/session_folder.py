"""Sessions on disk, written with the project's own records, and a model that follows a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import (
    ConfigAggregation,
    Criterion,
    CriterionScore,
    EvalResult,
    Intent,
    IterationAggregation,
    JudgeOpinion,
    JudgmentResult,
    LineageNode,
    RolloutJudgment,
    RunConfigEntry,
    SeedResult,
    SessionConfig,
    TrainScalars,
    utc_now,
)
from p2p.files import save_model
from p2p.inference.question import Answer, AskAgain, BadReply, Conversation, Output, Question
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.records.lineage import Lineage
from p2p.records.loop_files import IterationPlan, SteeringTaken
from p2p.records.session_view import SessionView
from p2p.training.metrics import to_line

REWARD = '''import numpy as np


def reward_fn(obs, action, next_obs, info):
    """Run.

    LaTeX: r = w v
    Terms:
        speed: forward velocity
        ctrl: effort
    """
    speed = WEIGHT * info["x_velocity"]
    ctrl = -0.1 * np.sum(np.square(action), axis=-1)
    return speed + ctrl, {"speed": speed, "ctrl": ctrl}
'''


def reward(weight: float) -> str:
    """A reward that differs from others by one number."""
    return REWARD.replace("WEIGHT", str(weight))


INTENT = Intent(
    prompt="run forward fast",
    env_id="HalfCheetah-v5",
    author="user",
    criteria=(
        Criterion(
            id="speed", title="Fast", description="", measure="mean forward speed",
            comparison="at_least", threshold=3.0, unit="m/s", weight=1.0, category="task",
        ),
        Criterion(
            id="upright", title="Upright", description="", measure="share of upright steps",
            comparison="at_least", threshold=0.9, weight=0.5, category="posture",
        ),
    ),
)  # fmt: skip

TRAIN = TrainConfig(env_id="HalfCheetah-v5", total_timesteps=100_000)


def judgment(score: float | None, *, step: int = 100_000) -> JudgmentResult:
    """A judgement of two episodes; None: the judge was not available."""
    if score is None:
        return JudgmentResult(intent_score=None, step=step, unavailable={"code": "it timed out"})
    passed = score >= 0.8
    speed = (4.0 if passed else 3.0) * score
    criteria = (
        CriterionScore(id="speed", score=score, std=0.1, value=speed, evidence="measured"),
        CriterionScore(id="upright", score=1.0),
    )
    rollouts = tuple(
        RolloutJudgment(
            label=f"seed_{seed}",
            seed=seed,
            score=score,
            criteria=criteria,
            diagnosis=f"episode {seed} is slow",
            opinions=(JudgeOpinion(judge="code", available=True, score=score, criteria=criteria),),
        )
        for seed in (7, 8)
    )
    return JudgmentResult(
        intent_score=score,
        passed=passed,
        diagnosis="it is slow",
        failure_tags=() if passed else ("too_slow",),
        step=step,
        score_std=0.05,
        criteria=criteria,
        rollouts=rollouts,
    )


@dataclass(frozen=True)
class SessionFolder:
    """A session whose iterations are written one after the other."""

    record: SessionRecord

    @classmethod
    def create(cls, path: Path, **loop: Any) -> SessionFolder:
        """With its sentence, criteria and settings."""
        record = SessionRecord(path / "session_20260101_000000_00000000")
        config = LoopConfig(**{"train": TRAIN, **loop})
        session = SessionConfig(
            session_id=record.session_id,
            prompt=INTENT.prompt,
            loop=config,
            created_at=utc_now(),
            version="0",
        )
        save_model(record.path / "session.json", session)
        save_model(record.path / "intent.json", INTENT)
        record.set_status("running")
        return cls(record)

    def view(self) -> SessionView:
        return SessionView(self.record)

    def remark(self, iteration: int, *remarks: str) -> None:
        """What a person said after an iteration."""
        taken = SteeringTaken(orders=(1,), remarks=remarks)
        self.record.iteration(iteration).steering.save(taken)

    def iterate(
        self,
        number: int,
        score: float | None,
        *,
        weight: float | None = None,
        code: str = "",
        train: TrainConfig = TRAIN,
        changes: str = "",
        rule: str = "",
        parent: int | None = None,
        seeds: Sequence[int] = (1,),
    ) -> IterationRecord:
        """An iteration that was trained, judged and put into the lineage."""
        code = code or reward(number if weight is None else weight)
        iteration = IterationRecord(self.record.path / f"iter_{number}")
        iteration.save_reward_source(code)
        configs = (RunConfigEntry(config_id="base"),)
        plan = IterationPlan(
            iteration=number, parent=parent, train=train, configs=configs, seeds=tuple(seeds)
        )
        iteration.plan.save(plan)
        for seed in seeds:
            run = IterationRecord(iteration.path / f"base_seed_{seed}")
            run.save_config(train.with_updates(seed=seed))
            run.save_reward_source(code)
            run.save_judgment(judgment(score))
            run.set_status("completed")
            write_scalars(run)
        aggregation = IterationAggregation(
            configs=(
                ConfigAggregation(
                    config_id="base",
                    per_seed=tuple(
                        SeedResult(run_id=f"base_seed_{s}", seed=s, status="completed")
                        for s in seeds
                    ),
                    mean_return=10.0 * number,
                    std_return=1.0,
                ),
            ),
            best_config_id="base",
            best_run_id=f"base_seed_{seeds[0]}",
        )
        iteration.aggregation.save(aggregation)
        iteration.save_judgment(judgment(score))
        judged = judgment(score)
        node = LineageNode(
            iteration=number,
            parent=parent,
            score=score,
            failure_tags=judged.failure_tags,
            diagnosis=judged.diagnosis,
            changes=changes,
            rule=rule,
            final_return=10.0 * number,
        )
        self.save_lineage(self.view().lineage.add(node))
        return iteration

    def save_lineage(self, lineage: Lineage) -> None:
        lineage.save(self.record.path / "lineage.json")


def write_scalars(run: IterationRecord) -> None:
    """Twenty updates with a rising return, and two evaluations."""
    lines: list[TrainScalars | EvalResult] = []
    for update in range(1, 21):
        values = {
            "episodic_return": 5.0 * update, "approx_kl": 0.01, "elapsed_time": 2.0 * update,
            "reward_term_speed": update, "reward_term_ctrl": -0.5 * update,
        }  # fmt: skip
        lines.append(TrainScalars(global_step=5000 * update, iteration=update, values=values))
    for step, mean in ((50_000, 40.0), (100_000, 90.0)):
        lines.append(
            EvalResult(
                global_step=step, all_returns=(mean,), episode_lengths=(1000,), mean_return=mean,
                std_return=0.0, min_return=mean, max_return=mean, median_return=mean,
                p10_return=mean, p90_return=mean, episode_length=1000, total_reward=mean,
                reward_terms={"speed": 3 * mean, "ctrl": -mean},
            )
        )  # fmt: skip
    run.scalars_path.parent.mkdir(parents=True, exist_ok=True)
    run.scalars_path.write_text("".join(f"{to_line(line)}\n" for line in lines))


Reply = Any
"""An answer, or a function of the question that gives one (and may call its tools)."""


@dataclass
class Scripted:
    """A model that gives these replies, the next one each time it is asked again."""

    replies: list[Reply]
    model: str = "test:script"
    complaints: list[str] = field(default_factory=list)
    questions: list[Question[Any]] = field(default_factory=list)

    def ask(self, question: Question[Output]) -> Answer[Output]:
        self.questions.append(question)
        while self.replies:
            reply = self.replies.pop(0)
            value = reply(question) if callable(reply) else reply
            try:
                question.check(value)
            except AskAgain as again:
                self.complaints.append(str(again))
                continue
            return Answer(question.output.model_validate(value), Conversation(None), self.model)
        raise BadReply("no acceptable answer")


def tool(question: Question[Any], name: str) -> Callable[..., str]:
    """A tool of the question, by its name."""
    return next(found for found in question.tools if found.__name__ == name)
