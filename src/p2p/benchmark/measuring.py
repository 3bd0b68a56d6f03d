"""The ground truth of a case: its session's policy, played in plain Gymnasium and measured.

A robot of an engine is stepped by the engine, and measured by its positions in plain MuJoCo.

Only the policy's safetensors file is read, whose every value is checked; no code of a session runs.
The environment is the one that is registered, whatever the session trained with. What is measured
lies outside of the session's folder, which is all that agents are shown.
"""

from __future__ import annotations

import hashlib
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from p2p.benchmark.records import case_record, read_benchmark
from p2p.benchmark.suite import Case
from p2p.benchmark.truth import TRUTHS
from p2p.benchmark.truth.episode import Episode
from p2p.benchmark.truth.legged import follow, gap
from p2p.config import EnvOptions, TrainConfig, engine_of
from p2p.contracts import Record, SessionResult
from p2p.files import read_bytes, read_model, save_model
from p2p.records.iteration_record import SessionRecord
from p2p.training.engines.table import is_engine

if TYPE_CHECKING:
    from p2p.training.policies.policy import Policy

NOT_YET = "not measured yet"
EPISODES = 10
FIRST_SEED = 70_000
"""Far from the seeds of training, judging and confirming."""
SEEDS = tuple(range(FIRST_SEED, FIRST_SEED + EPISODES))

Act = Callable[[NDArray[np.float64]], NDArray[Any]]


class NotPlayable(Exception):
    """A policy that cannot be measured; the message says why."""


class TruthResult(Record):
    """truth/case<n>.json: what was measured."""

    truth: str
    unit: str
    better: Literal["at_least", "at_most"]
    threshold: float
    value: float
    """The mean over the episodes."""
    std: float
    values: tuple[float, ...]
    passed: bool
    attained: Annotated[float, Field(ge=0, le=1)]
    """How much of the threshold: comparable between truths."""
    seeds: tuple[int, ...]
    policy: str
    """SHA-256 of the file that was played."""

    @property
    def text(self) -> str:
        """`missed: forward_speed 0.2 m/s, at least 0.5 asked`."""
        verdict = "met" if self.passed else "missed"
        target = f"{self.better.replace('_', ' ')} {self.threshold:g}"
        return f"{verdict}: {self.truth} {self.value:.3g} {self.unit}, {target} asked"


def truth_path(folder: Path, number: int) -> Path:
    """The file of a case's measurement, in the benchmark's folder."""
    return folder / "truth" / f"case{number}.json"


def policy_file(session: Path, result: SessionResult | None) -> Path | None:
    """Return the policy file that is safe to load, or None if the session has none."""
    if result is None or result.policy is None:
        return None
    path = (session / result.policy).with_name("policy.safetensors")
    # result.json may have come from another machine: it names no file outside of the session.
    if not path.resolve().is_relative_to(session.resolve()):
        raise NotPlayable(f"{session.name}: its policy lies outside of it")
    return path


def measure(
    folder: Path, case: Case, result: SessionResult | None, *, play: bool = True
) -> TruthResult | None:
    """Measure a case, or read an earlier measurement of the same policy.

    None: there is no truth to compare with, or no policy. Raises NotPlayable, also for what is not
    measured yet where nothing is to be played.
    """
    path = policy_file(case_record(folder, case.number).path, result)
    if path is None or case.truth is None or case.threshold is None:
        return None
    digest = _digest(path)
    kept = read_model(truth_path(folder, case.number), TruthResult)
    key = (case.truth, case.threshold, SEEDS, digest)
    if kept is not None and (kept.truth, kept.threshold, kept.seeds, kept.policy) == key:
        return kept
    if not play:
        raise NotPlayable(NOT_YET)
    truth = TRUTHS.get(case.truth)
    if truth is None:
        raise NotPlayable(f"there is no truth {case.truth!r} in this version")
    values = tuple(truth.measure(e) for e in play_policy(case.env_id, path))
    value = statistics.fmean(values)
    measurement = TruthResult(
        truth=case.truth,
        unit=truth.unit,
        better=truth.better,
        threshold=case.threshold,
        value=value,
        std=statistics.pstdev(values),
        values=values,
        passed=truth.passes(value, case.threshold),
        attained=truth.compute_attainment(value, case.threshold),
        seeds=SEEDS,
        policy=digest,
    )
    save_model(truth_path(folder, case.number), measurement)
    return measurement


def ground_truth(session: Path) -> TruthResult | None:
    """The measurement of a session that is a case of a benchmark, or None."""
    name = re.fullmatch(r"case(\d+)", session.name)
    benchmark = read_benchmark(session.parent) if name else None
    if name is None or benchmark is None:
        return None
    result = SessionRecord(session).result.read()
    for case in benchmark.cases:
        if case.number == int(name[1]):
            with suppress(NotPlayable):
                return measure(session.parent, case, result, play=False)
    return None


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    except OSError as error:
        raise NotPlayable(f"{path}: {error.strerror}") from error


# --- playing --------------------------------------------------------------------------------------


def play_policy(env_id: str, policy_file: Path, seeds: Sequence[int] = SEEDS) -> list[Episode]:
    """Deterministic episodes of a saved policy; raises NotPlayable."""
    from p2p.training.policies.policy import Policy, PolicyFileError

    try:
        policy = Policy.load(policy_file)
    except OSError as error:
        raise NotPlayable(f"{policy_file}: {error.strerror}") from error
    except PolicyFileError as error:
        raise NotPlayable(f"{policy_file}: {error}") from error
    if is_engine(engine_of(env_id)):
        return list(_play_in_engine(env_id, policy, seeds))
    act: Act = lambda obs: policy.act(obs[None])[0]  # noqa: E731
    return list(play(env_id, act, seeds, observe_time=policy.observe_time))


def _play_in_engine(env_id: str, policy: Policy, seeds: Sequence[int]) -> Iterator[Episode]:
    """The engine steps; of what it recorded, positions alone are used."""
    from p2p.training.env_spec import get_env_spec
    from p2p.training.evaluation import play_episodes
    from p2p.training.video.scene import open_model

    spec, (model, _) = get_env_spec(env_id), open_model(env_id)
    config = TrainConfig(env_id=env_id, observe_time=policy.observe_time)
    for episode in play_episodes(config, policy, episodes=len(seeds), seed=seeds[0]):
        qpos = np.asarray(episode.columns["qpos"], np.float64)
        states = np.concatenate([qpos[:1], qpos])  # the state before the first step is not kept
        yield follow(model, states, spec.dt, spec.max_episode_steps or len(qpos))


def play(
    env_id: str, act: Act, seeds: Sequence[int], *, observe_time: bool = False
) -> Iterator[Episode]:
    """Play one episode for each seed in the registered environment; raises NotPlayable.

    `observe_time` says whether the policy sees the time, as its file says.
    """
    from gymnasium.error import Error

    from p2p.training.envs.registry import make_single

    try:
        env = make_single(EnvOptions(env_id, observe_time=observe_time))
    except (ValueError, Error) as error:
        raise NotPlayable(f"{env_id} cannot be made: {error}") from error
    try:
        for seed in seeds:
            yield _episode(env, act, seed)
    finally:
        env.close()


def _episode(env: Any, act: Act, seed: int) -> Episode:
    obs, _ = env.reset(seed=seed)
    model, data = env.unwrapped.model, env.unwrapped.data
    parts = [_geoms(model, body) for body in range(model.nbody)]
    states = [_state(model, data, parts)]
    over = False
    while not over:
        try:
            obs, _, terminated, truncated, _ = env.step(act(obs))
        except ValueError as error:
            raise NotPlayable(f"the policy does not fit the environment: {error}") from error
        states.append(_state(model, data, parts))
        over = terminated or truncated
    qpos, xpos, rotation, heights = (np.stack(part) for part in zip(*states, strict=True))
    names = tuple(model.body(number).name for number in range(model.nbody))
    horizon = env.spec.max_episode_steps or len(states) - 1
    return Episode(qpos, xpos, rotation, heights, names, names, float(env.unwrapped.dt), horizon)


def _geoms(model: Any, body: int) -> list[int]:
    first = int(model.body_geomadr[body])
    return [*range(first, first + int(model.body_geomnum[body]))]


def _state(model: Any, data: Any, parts: list[list[int]]) -> tuple[NDArray[Any], ...]:
    ground, *bodies = parts
    heights = [min((gap(model, data, ground, g) for g in part), default=1.0) for part in bodies]
    rotation = data.xmat[1].reshape(3, 3).copy()
    return data.qpos.copy(), data.xpos.copy(), rotation, np.array([0.0, *heights])
