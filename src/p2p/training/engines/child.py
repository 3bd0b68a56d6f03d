"""In the engine's own Python: step an environment without a reward, and write down what it is.

Runs in the sandbox, as training does. Nothing that a model wrote is in it, so the kernels that it
compiles may be kept for later processes.
"""

from __future__ import annotations

import json
import platform
import threading
import time
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from p2p.contracts import PolicyMetadata
from p2p.training.env_spec import ActionEntry, EnvSpec, JointEntry, ObservationEntry
from p2p.training.specs.mujoco_backend import ModelDescription, read_action
from p2p.training.specs.observation_layout import Samples, StateLibrary, read_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from p2p.training.engines.engine_env import EngineEnv, EngineTerm


PACKAGES = ("mjlab", "isaaclab", "mujoco", "mujoco-warp", "newton", "warp-lang", "torch",
            "rsl-rl-lib", "numpy")  # fmt: skip


def main(payload: dict[str, Any], send: Callable[[bytes], None]) -> None:
    """Make `env_id`, step it, and answer with a `done`; with `facts`, leave them in the folder."""

    def send_message(**message: Any) -> None:
        send(json.dumps(message).encode())

    began = time.monotonic()
    doing = "importing the engine"
    over = threading.Event()

    def report() -> None:  # importing and compiling take minutes, and say nothing
        while not over.wait(1.0):
            send_message(progress=doing, seconds=time.monotonic() - began)

    threading.Thread(target=report, daemon=True).start()
    from p2p.config import EnvOptions
    from p2p.training.engines.engine_env import choose_device, get_adapter

    if "play" in payload:
        _play(Path(payload["folder"]), **payload["play"])
        over.set()
        send_message(done={})
        return
    adapter = get_adapter(payload["engine"])
    if payload.get("registry"):
        send_message(done={"environments": adapter.environments()})
        return
    doing = "building the environment; kernels are compiled the first time, which takes minutes"
    options = EnvOptions(payload["env_id"], device=choose_device(payload["device"]))
    env = adapter.make(options, payload["num_envs"])
    env.reset_batch(0)
    import numpy as np

    rng = np.random.default_rng(0)
    width = env.single_action_space.shape[0]
    env.step_batch(rng.uniform(-1, 1, (env.num_envs, width)))
    env.restart(np.ones(env.num_envs, np.bool_))
    doing = "stepping"
    ready = time.monotonic()
    for _ in range(payload["steps"]):
        step = env.step_batch(rng.uniform(-1, 1, (env.num_envs, width)))
    rate = env.num_envs * payload["steps"] / max(time.monotonic() - ready, 1e-9)
    if payload.get("facts"):
        doing = "reading the environment's facts"
        from p2p.training.engines.child import read_live_spec, read_policy_metadata

        folder = Path(payload["folder"]) / "facts"
        env.write_model(folder / "model")
        metadata = read_policy_metadata(payload["engine"], version(payload["engine"]), env)
        (folder / "policy_metadata.json").write_text(metadata.model_dump_json())
        (folder / "spec.json").write_text(read_live_spec(payload["engine"], env).model_dump_json())
        (folder / "preset.json").write_text(json.dumps(adapter.preset(payload["env_id"])))
    over.set()
    send_message(
        done={
            "versions": {"python": platform.python_version(), **_versions()},
            "device": options.device,
            "observations": int(step.obs.shape[1]),
            "actions": width,
            "finite": bool(np.isfinite(step.obs).all()),
            "steps_per_second": rate,
            "seconds_to_start": ready - began,
        }
    )


def _play(
    folder: Path,
    config: dict[str, Any],
    acts: list[str | None],
    rows: int,
    episodes: int,
    seed: int,
) -> None:
    """Leave recorded episodes of behaviours, or where there is none of the folder's policy."""
    from p2p.config import TrainConfig
    from p2p.training.engines.engine_env import make_engine_env
    from p2p.training.evaluation import play_rounds
    from p2p.training.policies.policy import Policy
    from p2p.training.specs.quantities import QUANTITIES

    options = TrainConfig.model_validate(config).env_options()
    env = make_engine_env(replace(options, quantities=frozenset(QUANTITIES)), rows)
    for k, act in enumerate(acts):
        chosen: Any = act or Policy.load(folder / "policy.safetensors")
        played = play_rounds(env, chosen, episodes=episodes, seed=seed)
        for i, episode in enumerate(played, k * episodes):
            episode.save(folder / f"episode_{i}.npz")


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


COMMAND = "command_"
SAMPLED_STEPS = 40
SAMPLED_ROWS = 4
SAME, MOVES = 1e-5, 1e-3
"""Spread of a number that stays as it is, and of one that does not."""


def read_live_spec(engine: str, env: EngineEnv) -> EnvSpec:
    """Everything that a reward author has to know."""
    facts = ModelDescription(env.robot)
    samples, actions, keys = _play_randomly(env, facts.library)
    layout = tuple(
        _find_action(_find_offset(entry, samples, facts), samples, actions)
        for entry in read_layout(None, samples, facts.library)
    )
    ends = ", ".join(env.terminations)
    return facts.spec(
        env_id=env.env_id,
        name=env.env_id,
        engine=engine,
        observation=tuple(_name_entries(layout, env.observation_terms)),
        actions=tuple(_read_actions(env, facts)),
        camera={},
        info_keys=keys,
        frame_skip=env.frame_skip,
        max_episode_steps=env.max_episode_steps,
        terminate_when_unhealthy=True if env.terminations else None,
        healthy_ranges={},
        termination=f"ended by the engine's own terms: {ends}" if ends else "never ends early",
    )


def read_policy_metadata(engine: str, version: str, env: EngineEnv) -> PolicyMetadata:
    """Everything that whoever runs a policy on a robot has to know."""
    joints, observed, actions = env.joint_drives(), env.observation_terms, env.action_terms
    commands = [name for name in env.report_state() if name.startswith(COMMAND)]
    return PolicyMetadata(
        env_id=env.env_id,
        engine=engine,
        engine_version=version,
        step_dt=env.dt,
        physics_dt=env.dt / env.frame_skip,
        quaternion_order=env.quaternion_order,
        joint_names=tuple(joint.name for joint in joints),
        default_joint_pos=tuple(joint.default_position for joint in joints),
        joint_stiffness=tuple(joint.stiffness for joint in joints),
        joint_damping=tuple(joint.damping for joint in joints),
        command_names=tuple(name.removeprefix(COMMAND) for name in commands),
        observation_names=tuple(term.name for term in observed),
        observation_dims=tuple(len(term.parts) for term in observed),
        observation_elements=tuple(term.parts for term in observed),
        observation_terms_scale=tuple(
            1.0 if not term.scale else term.common_scale or term.scale for term in observed
        ),
        observation_terms_clip=tuple(term.clip[0] if term.clip else None for term in observed),
        observation_terms_history_length=tuple(term.history_length for term in observed),
        action_names=tuple(term.name for term in actions),
        action_types=tuple(term.kind for term in actions),
        action_joint_names=tuple(part for term in actions for part in term.parts),
        action_scale=_collect_setting(actions, "scale", 1.0),
        action_offset=_collect_setting(actions, "offset", 0.0),
        action_clip=_collect_setting(actions, "clip", None),
    )


def _collect_setting(terms: Sequence[EngineTerm], setting: str, default: Any) -> tuple[Any, ...]:
    """A setting of all numbers of the action."""
    values = [getattr(term, setting) or (default,) * len(term.parts) for term in terms]
    return tuple(value for of_term in values for value in of_term)


def _play_randomly(
    env: EngineEnv, library: StateLibrary
) -> tuple[Samples, NDArray[np.float64], dict[str, str]]:
    """Random play, its actions (S, A), and the keys that its info had."""
    rng = np.random.default_rng(0)
    env.reset_batch(0)
    observations, snapshots, actions, keys = [], [], [], dict[str, str]()
    for _ in range(SAMPLED_STEPS):
        action = rng.uniform(-1, 1, (env.num_envs, *env.single_action_space.shape))
        step = env.step_batch(action)
        for row in range(min(env.num_envs, SAMPLED_ROWS)):
            observations.append(step.next_obs[row])
            actions.append(action[row])
            snapshots.append(library.snapshot(env.row_side_info(row)["mj_data"]))
        keys = {
            name: f"as the engine reports it, {values[0].size} numbers"
            for name, values in step.info.items()
        }
    samples = Samples(np.stack(observations), library.values(np.stack(snapshots)))
    return samples, np.stack(actions), keys


def _find_offset(
    entry: ObservationEntry, samples: Samples, facts: ModelDescription
) -> ObservationEntry:
    """A position that is observed from the pose in which episodes begin, as engines do."""
    if entry.source is not None:
        return entry
    positions = samples.values[:, : facts.robot.model.nq]
    gaps = samples.observations[:, entry.index, None] - positions
    constant = (np.ptp(gaps, axis=0) < SAME) & (np.ptp(positions, axis=0) > MOVES)
    if not constant.any():
        return entry
    column = int(np.argmax(constant))
    offset = -float(gaps[:, column].mean())
    quantity = facts.library.quantities[column]
    return ObservationEntry(
        index=entry.index,
        name=f"{quantity.name}_from_start",
        source=f"{quantity.source} - {offset:.6g}",
        unit=quantity.unit,
        description=f"{quantity.description}; less {offset:.4g}, where episodes begin",
    )


def _find_action(
    entry: ObservationEntry, samples: Samples, actions: NDArray[np.float64]
) -> ObservationEntry:
    """Return what the policy did in the step that led here, where it observes that."""
    if entry.source is not None:
        return entry
    gaps = np.abs(samples.observations[:, entry.index, None] - actions).max(axis=0)
    column = int(np.argmin(gaps))
    update = {"source": f"action[{column}]"} if gaps[column] < SAME else {}
    return entry.model_copy(update=update)


def _name_entries(
    layout: Sequence[ObservationEntry], terms: Sequence[EngineTerm]
) -> list[ObservationEntry]:
    """Return what experiments found, and the engine's own name for it."""
    labels = [(term, part) for term in terms for part in term.parts]
    entries = []
    for entry, (term, part) in zip(layout, labels, strict=True):
        label = f"{term.name}_{part}" if part else term.name
        if entry.source is None or entry.source.startswith("action["):
            text = term.description or "as the engine computes it"
            text = f"{term.name}: {text} ({part})" if part else f"{term.name}: {text}"
            changes = {"name": label, "unit": term.unit, "description": text}
        else:
            changes = {"description": f"{label}: {entry.description}"}
        entries.append(entry.model_copy(update=changes))
    return entries


def _read_actions(env: EngineEnv, facts: ModelDescription) -> list[ActionEntry]:
    """Each number of the action: with the actuator of its joint, where there is one."""
    model = env.model
    by_joint = {int(model.actuator_trnid[i, 0]): i for i in range(model.nu)}
    ids = {joint.name: joint.id for joint in facts.joints}
    entries: list[ActionEntry] = []
    for term in env.action_terms:
        for part in term.parts:
            index = len(entries)
            joint = next((ids[name] for name in ids if name.rpartition("/")[2] == part), None)
            actuator = None if joint is None else by_joint.get(joint)
            if term.is_effort and joint is not None:
                entry = _read_effort(term, facts.joints[joint])
            elif actuator is None:
                entry = ActionEntry(
                    index=index, name=f"{term.name}_{part}", joint=None, kind=term.name,
                    low=None, high=None, gear=1.0, unit="", description=term.description,
                )  # fmt: skip
            else:
                entry = read_action(model, actuator, facts.joints, (None, None))
                scale = "" if term.common_scale is None else f"; 1.0 is {term.common_scale:g} of it"
                entry = entry.model_copy(update={"description": f"{entry.description}{scale}"})
            entries.append(entry.model_copy(update={"index": index}))
    return entries


def _read_effort(term: EngineTerm, joint: JointEntry) -> ActionEntry:
    kind, unit = ("force", "N") if joint.type == "slide" else ("torque", "N m")
    scale = 1.0 if term.common_scale is None else term.common_scale
    text = f"{kind} on {joint.name}: {scale:g} {unit} per 1.0, in its positive direction"
    return ActionEntry(
        index=0, name=joint.name, joint=joint.name, kind=kind, low=None, high=None, gear=scale,
        unit=unit, description=f"{text}; {joint.sign}",
    )  # fmt: skip
