"""Whole sessions in this process, answered by a model provider on loopback.

Training is real and deterministic, so an equal reward with equal settings is trained only once.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from model_servers import CANARY, ModelServer, ProviderName, Script
from session_process import TINY

from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import IterationAggregation, RunConfigEntry, SessionResult
from p2p.event_log import read_events
from p2p.inference import llm_client
from p2p.inference.question import RetryPolicy
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.session.agents import SessionAgents
from p2p.session.context import SessionContext, local_trainer
from p2p.session.loop import run_loop
from p2p.session.request import ResumeOptions, loop_config
from p2p.session.start import create_session, open_config
from p2p.session.stopping import StopSwitch
from p2p.settings import Settings, get_settings
from p2p.training.trainer import Trainer, aggregate, run_name, seed_result

QUICK = RetryPolicy(attempts=3, first_s=0.01, timeout_s=20.0)


@dataclass
class TrainsOnce:
    """A trainer that remembers what it has trained, over all sessions of a folder."""

    trainer: Trainer
    kept: Path

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
        assert base_config is not None
        assert iteration_dir is not None
        asked = "".join([reward_path.read_text(), base_config.to_json(), str(configs), str(seeds)])
        kept = self.kept / hashlib.sha256(asked.encode()).hexdigest()
        names = {run_name(entry, seed): seed for entry in configs for seed in seeds}
        if kept.exists():
            shutil.copytree(kept, iteration_dir, dirs_exist_ok=True)
            records = {name: IterationRecord(iteration_dir / name) for name in names}
            results = {name: seed_result(name, seed, records[name]) for name, seed in names.items()}
            return aggregate(configs, seeds, results)
        found = self.trainer.train(
            configs,
            seeds,
            reward_path=reward_path,
            base_config=base_config,
            iteration_dir=iteration_dir,
        )
        if all(run.status == "completed" for config in found.configs for run in config.per_seed):
            for name in names:
                shutil.copytree(iteration_dir / name, kept / name)
        return found


@dataclass
class ProvidedSessions:
    """Sessions below a folder, and the servers that they ask."""

    folder: Path
    kept: Path
    monkeypatch: pytest.MonkeyPatch
    stack: ExitStack = field(default_factory=ExitStack)

    def serve(self, provider: ProviderName, script: Script) -> ModelServer:
        """Start a server and lead a provider's client to it."""
        server = self.stack.enter_context(ModelServer(script))
        for name, value in server.environment(provider).items():
            self.monkeypatch.setenv(name, value)
        get_settings.cache_clear()
        return server

    def new(self, name: str, model: str, **options: Any) -> SessionRecord:
        """A session of two short iterations that do not pass, unless options say otherwise."""
        fields: dict[str, Any] = {
            "train": TINY,
            "max_iterations": 2,
            "pass_threshold": 1.0,
            "videos": False,
            "judge_episodes": 3,
            **options,
        }
        loop = loop_config(TINY["env_id"], model=model, **fields)
        return create_session("balance", loop, session_id=name, runs_dir=self.folder)

    def run(self, session: SessionRecord, *, resume: bool = False, **changes: Any) -> SessionResult:
        """Work on it, as `run_session.run` does."""
        config = open_config(session, ResumeOptions(**changes), resume=resume)
        switch = StopSwitch()
        agents = SessionAgents(session, config.loop, cancelled=switch.is_cancelled)
        context = SessionContext(
            session, config, agents, switch, trainer=self._trainer, judge_waits_s=(0.0,)
        )
        return run_loop(context, resume=resume)

    def _trainer(self, loop: LoopConfig, switch: StopSwitch) -> Trainer:
        return TrainsOnce(local_trainer(loop, switch), self.kept)

    def files_with_the_key(self) -> list[Path]:
        """Files below the runs folder that hold the key, which must not be."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        assert len(files) > 5
        return [path for path in files if CANARY.encode() in path.read_bytes()]


@contextmanager
def provided_sessions(
    folder: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ProvidedSessions]:
    """A place where neither the machine's keys nor its busy cores count, with little patience."""
    for name, setting in Settings.model_fields.items():
        alias = setting.validation_alias
        for variable in getattr(alias, "choices", [alias if isinstance(alias, str) else name]):
            monkeypatch.delenv(str(variable).upper(), raising=False)
    runtime = folder / "runtime"
    runtime.mkdir(parents=True)
    monkeypatch.setenv("P2P_CORE_LOCKS", str(runtime))
    monkeypatch.setattr(llm_client, "RetryPolicy", lambda: QUICK)
    monkeypatch.chdir(folder)
    get_settings.cache_clear()
    sessions = ProvidedSessions(folder / "runs", kept, monkeypatch)
    with sessions.stack:
        yield sessions
    get_settings.cache_clear()


def events(session: SessionRecord, name: str) -> list[dict[str, Any]]:
    """The data of all events of this name."""
    return [e.data for e in read_events(session.events_path, limit=10_000) if e.event == name]


def roles(server: ModelServer) -> list[str]:
    """Who asked, in order."""
    return [received.block[0] for received in server.requests]
