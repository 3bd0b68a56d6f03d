"""Agents that answer as a script says, so that a test decides what a session goes through.

As a program it runs a session with such a script: `python scripted_agents.py SESSION SCRIPT`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from p2p.agents.requests import EnvironmentChoice
from p2p.config import TrainConfig
from p2p.contracts import (
    AuthoredCode,
    AuthoringStep,
    Criterion,
    CriterionScore,
    Intent,
    IterationAggregation,
    JudgmentResult,
    Revision,
    RunConfigEntry,
    SteeringOrder,
    utc_now,
)
from p2p.files import append_line
from p2p.inference import question
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.records.session_view import SessionView
from p2p.records.statuses import EXIT_CODES
from p2p.session.agents import SessionAgents
from p2p.session.context import SessionContext, local_trainer
from p2p.session.loop import run_loop
from p2p.session.steering import give_feedback
from p2p.training.trainer import aggregate, run_name, seed_result

REWARD = '''
import numpy as np

def reward_fn(obs, action, next_obs, info):
    """
    LaTeX: r = 1 - theta^2
    Terms:
        upright: stay up
    """
    upright = 1.0 - np.square(next_obs[..., 1])
    return upright * WEIGHT, {"upright": upright * WEIGHT}
'''
JUDGE = "def judge_fn(trajectory, summary):\n    return {}\n"


def reward(weight: float) -> str:
    return REWARD.replace("WEIGHT", f"{weight:.1f}")


def criterion(name: str = "upright", threshold: float = 0.9) -> Criterion:
    return Criterion(
        id=name,
        title="Stays up",
        description="the pole does not fall",
        measure="share of the episode",
        comparison="at_least",
        threshold=threshold,
        weight=1.0,
        category="task",
    )


@dataclass
class ScriptedAgents(SessionAgents):
    """Calls are noted in `calls`; scores and errors come from the script.

    Script: scores (by iteration, [first, on held-out seeds]; null: no judge could judge), raises
    (by call and how often it was made, an exception of p2p.inference), invalid (iterations), code
    (rewards by iteration), notes (of a revision), feedback (that a user gives during a call),
    unanswered (requests), slow (seconds of each call).
    """

    script: dict[str, Any] = field(default_factory=dict)

    @property
    def calls_path(self) -> Path:
        return self.session.path.parent / f"{self.session.session_id}.calls"

    def calls(self) -> list[str]:
        if not self.calls_path.exists():
            return []
        return [json.loads(line)["call"] for line in self.calls_path.read_text().splitlines()]

    def _call(self, name: str) -> None:
        append_line(self.calls_path, json.dumps({"call": name}).encode())
        for parts in self.script.get("feedback", {}).get(name, []):
            give_feedback(self.session.path, SteeringOrder(given_at=utc_now(), **parts))
        time.sleep(self.script.get("slow", 0.0))
        planned = self.script.get("raises", {}).get(name, [])
        count = self.calls().count(name)
        if count <= len(planned) and planned[count - 1]:
            raise getattr(question, planned[count - 1])(f"planned: {planned[count - 1]}")

    def choose_environment(self, prompt: str) -> EnvironmentChoice:
        self._call("choose_environment")
        return EnvironmentChoice(env_id=self.script.get("env_id"), reason=f"it can {prompt}")

    def elicit(self, prompt: str, env_id: str, rejected: object = None) -> Intent:
        self._call("elicit")
        training = self.script.get("training", {})
        return Intent(
            prompt=prompt,
            env_id=env_id,
            criteria=(criterion(),),
            training=training,
            author="script",
            final=False,
        )

    def write_reward(
        self, intent, config, judge_code, code=None, author="", previous_best=None
    ) -> AuthoredCode:
        number = 1 + sum(1 for r in self.session.iteration_records() if r.reward.exists())
        self._call("write_reward" if code is None else f"repair_reward {number}")
        assert code is None or judge_code() == JUDGE
        assert previous_best is None or (previous_best / "policy.safetensors").is_file()
        return self._code(number, code or reward(1.0))

    def _code(self, number: int, code: str) -> AuthoredCode:
        code = self.script.get("code", {}).get(str(number), code)
        valid = number not in self.script.get("invalid", [])
        step = AuthoringStep(kind="check", ok=valid, text="fine" if valid else "no such name: x")
        return AuthoredCode(code=code, author="script", valid=valid, steps=(step,))

    def write_judge(
        self,
        intent: Intent,
        config: TrainConfig,
        code: str = "",
        amendments: tuple[str, ...] = (),
    ) -> AuthoredCode:
        amended = "".join(f" amended: {text}" for text in amendments)
        self._call(f"write_judge {','.join(c.id for c in intent.criteria)}{amended}")
        written = sum(call.startswith("write_judge") for call in self.calls())
        first_bad = self.script.get("bad_judges_from", 1000)
        valid = self.script.get("bad_judges", 0) < written < first_bad
        return AuthoredCode(code=JUDGE, author="script", valid=valid)

    def judge(
        self, intent, judge_code, run, config, *, step, episodes, block, folder, amendments=()
    ) -> JudgmentResult:
        number = IterationRecord(run.path.parent).number
        confirming = block > 1
        self._call(f"{'confirm' if confirming else 'judge'} {number} block {block}")
        assert (run.checkpoints_dir / f"step_{step}" / "policy.safetensors").is_file()
        score = self.script.get("scores", {}).get(str(number), [0.5, 0.5])[confirming]
        if isinstance(score, list):  # one after the other
            asked = self.calls().count(f"judge {number} block {block}")
            score = score[min(asked, len(score)) - 1]
        if score is None:
            return JudgmentResult(intent_score=None, unavailable={"code": "it is out"})
        return JudgmentResult(
            intent_score=score,
            passed=score >= self.loop.pass_threshold,
            diagnosis=f"scored {score}",
            step=step,
            score_std=0.0,
            criteria=tuple(CriterionScore(id=c.id, score=score) for c in intent.criteria),
            amendments=tuple(self.script.get("amendments", {}).get(str(number), ())),
        )

    def judge_early(self, intent, judge_code, config, trajectories, step) -> JudgmentResult:
        return JudgmentResult(intent_score=0.1, step=step)

    def revise(self, session: SessionView, iteration: int) -> Revision:
        self._call(f"revise {iteration}")
        assert session.lineage.node(iteration) is not None
        taken_up = "; ".join(session.remarks)
        return Revision(
            based_on=iteration,
            diagnosis="more of it",
            lesson=f"lesson of {iteration}",
            changes=f"weight {iteration + 1}",
            reward_code=self.script.get("reward_code", reward(iteration + 1.0)),
            hp_changes=self.script.get("hp_changes", {}),
            warm_start=self.script.get("warm_start", False),
            remarks_taken_up=taken_up,
            notes=tuple(self.script.get("notes", ())),
            author="script",
        )

    def forget(self, *roles: str) -> None:
        self._call("forget " + " ".join(roles))

    def usage(self) -> dict[str, Any]:
        lost = self.script.get("unanswered", 0)
        return {
            "model_calls": len(self.calls()),
            "tokens": 7,
            "cost_usd": 0.25,
            "unanswered": lost,
            "unanswered_usd": 0.125 * lost,
        }


@dataclass
class CopyingTrainer:
    """Hands out copies of a run that was really trained; a reward with `boom` in it fails."""

    trained: Path

    def train(
        self,
        configs: Sequence[RunConfigEntry],
        seeds: Sequence[int],
        *,
        reward_path: Path | None = None,
        base_config: TrainConfig | None = None,
        iteration_dir: Path | None = None,
    ) -> IterationAggregation:
        assert reward_path is not None
        assert iteration_dir is not None
        results = {}
        for entry in configs:
            for seed in seeds:
                name = run_name(entry, seed)
                record = IterationRecord(iteration_dir / name)
                shutil.copytree(self.trained, record.path, dirs_exist_ok=True)
                if "boom" in reward_path.read_text():
                    record.set_status("failed", "the reward raised: boom")
                results[name] = seed_result(name, seed, record)
        return aggregate(configs, seeds, results)


def context_of(
    session: SessionRecord, script: dict[str, Any], trained: Path | None = None
) -> SessionContext:
    config = session.config.read()
    assert config is not None
    return SessionContext(
        session,
        config,
        ScriptedAgents(session, config.loop, script=script),
        trainer=local_trainer if trained is None else lambda *_: CopyingTrainer(trained),
        judge_waits_s=(0.0, 0.0),
    )


if __name__ == "__main__":
    record = SessionRecord(Path(sys.argv[1]))
    result = run_loop(context_of(record, json.loads(sys.argv[2])), resume="--resume" in sys.argv)
    print(result.status, result.message)
    sys.stdout.flush()
    os._exit(EXIT_CODES[result.status])
