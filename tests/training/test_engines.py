"""Engines: simulators with Python environments of their own.

Tests that are marked slow run on the real engine, where `p2p engines install mjlab` was done.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import psutil
import pytest
import torch
from processes import wait_until
from typer.testing import CliRunner

from p2p.cli import app
from p2p.config import ConfigurationError, EnvOptions, TrainConfig
from p2p.contracts import PolicyMetadata, StateSaved, WorkerMessage
from p2p.records.iteration_record import IterationRecord
from p2p.sandbox import SandboxUnavailable, launch, set_unsafe_local
from p2p.settings import get_settings
from p2p.training.engines import engine_env, facts, install
from p2p.training.engines.child import read_policy_metadata
from p2p.training.engines.engine_env import EngineEnv, EngineTerm, Groups, Reached
from p2p.training.engines.table import (
    ENGINES,
    EngineMissing,
    engine_environments,
    engine_folder,
    find_installed,
    require_installed,
)
from p2p.training.evaluation import play_rounds, record_behaviours, record_episodes
from p2p.training.export import export_run
from p2p.training.policies.network import NetworkShape, action_mean, initial_parameters
from p2p.training.policies.policy import Policy
from p2p.training.reward_runner import RewardRunner
from p2p.training.reward_tensors import TensorTransition, decide_tensors
from p2p.training.runner import RunOptions, TrainingCancelled, TrainingFailed, run_training
from p2p.training.specs.quantities import QUANTITIES, Robot, compute, measure, names_of
from p2p.training.trajectory import RecordedEpisode
from p2p.training.worker import choose_backend

TRIAL = "Mjlab-Cartpole-Balance"
REWARD = '''
import numpy as np


def reward_fn(obs, action, next_obs, info):
    """Balance."""
    upright = next_obs[..., 1]
    centred = -0.1 * np.square(next_obs[..., 0])
    effort = -0.01 * np.sum(action**2, axis=-1)
    return upright + centred + effort, {"upright": upright, "centred": centred, "effort": effort}
'''


@pytest.fixture
def no_engines(tmp_path, monkeypatch):
    """A machine without any engine."""
    monkeypatch.setenv("P2P_ENGINES_DIR", str(tmp_path / "engines"))
    get_settings.cache_clear()
    yield tmp_path / "engines"
    get_settings.cache_clear()


def write_installation(home: Path, python: str, **versions: str) -> None:
    """What a complete installation of mjlab leaves, but for these versions."""
    pinned = dict(pin.split("==") for pin in ENGINES["mjlab"].requirements)
    record = {
        "engine": "mjlab",
        "version": pinned["mjlab"],
        "python": python,
        "versions": pinned | versions,
    }
    (home / "engine.json").write_text(json.dumps(record))


# --- what needs no engine -------------------------------------------------------------------------


def test_damaged_facts_are_named_with_what_to_do(no_engines):
    folder = facts.facts_folder("mjlab", TRIAL)
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text('{"env_id": "Mjl')
    with pytest.raises(ConfigurationError, match=rf"spec\.json is missing or damaged: .*{TRIAL}"):
        facts.MjlabBackend().read_spec(TRIAL)
    with pytest.raises(ConfigurationError, match=r"policy_metadata\.json is missing or damaged"):
        facts.policy_metadata(TrainConfig(env_id=TRIAL), "iter_1")


def test_facts_without_a_new_field_are_read_again(no_engines, monkeypatch):
    class Later(PolicyMetadata):
        new: int = 0

    before = facts.facts_folder("mjlab", TRIAL)
    assert facts.facts_folder("mjlab", TRIAL) == before
    monkeypatch.setattr(facts, "PolicyMetadata", Later)
    facts._fields_digest.cache_clear()
    assert facts.facts_folder("mjlab", TRIAL) != before
    monkeypatch.undo()
    facts._fields_digest.cache_clear()


def test_an_id_names_its_engine():
    assert TrainConfig(env_id=TRIAL).engine == "mjlab"
    assert TrainConfig(env_id="Ant-v5").engine == "mujoco"
    assert TrainConfig().with_updates(env_id=TRIAL).engine == "mjlab"
    with pytest.raises(ValueError, match="engine 'mjlab' has no Ant-v5"):
        TrainConfig(env_id="Ant-v5", engine="mjlab")


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_trains_with_rsl_rl_or_stable_baselines(name):
    env_id = ENGINES[name].trial
    assert choose_backend(TrainConfig(env_id=env_id)) == "rsl_rl"
    assert choose_backend(TrainConfig(env_id=env_id, backend="sb3")) == "sb3"
    with pytest.raises(ConfigurationError, match="rsl_rl"):
        choose_backend(TrainConfig(env_id=env_id, backend="fast"))
    with pytest.raises(ConfigurationError, match="GPU simulators"):
        choose_backend(TrainConfig(backend="rsl_rl"))


@pytest.mark.parametrize("name", ENGINES)
def test_the_list_of_an_engine_has_the_environment_that_is_tried(name):
    assert ENGINES[name].trial in engine_environments(name)
    assert all(TrainConfig(env_id=known).engine == name for known in engine_environments(name))


@pytest.mark.parametrize(
    "command",
    [
        ["train", "REWARD", "--env", TRIAL],
        ["run", "keep the pole up", "--env", TRIAL, "--model", "builtin"],
        ["envs", TRIAL],
        ["check", "REWARD", "--env", TRIAL],
        ["engines", "check", "mjlab"],
    ],
)
def test_a_command_says_how_to_install_what_is_missing(no_engines, tmp_path, command):
    reward = tmp_path / "reward.py"
    reward.write_text(REWARD)
    words = [str(reward) if word == "REWARD" else word for word in command]
    result = CliRunner().invoke(app, words)
    told = f"{result.output} {result.exception}"
    assert result.exit_code
    assert "p2p engines install mjlab" in " ".join(told.split())


def test_a_run_says_how_to_install_what_is_missing(no_engines, tmp_path):
    record = IterationRecord(tmp_path / "session_x" / "iter_1")
    with pytest.raises(TrainingFailed, match="p2p engines install mjlab") as failed:
        run_training(TrainConfig(env_id=TRIAL), REWARD, record)
    assert failed.value.kind == "config"


def test_pins_that_an_interpreter_does_not_meet_are_found():
    missing = install.missing(ENGINES["mjlab"], Path(sys.executable))
    assert "mjlab==1.6.0" in missing
    assert not [name for name in missing if name.startswith("pydantic")]


def test_behaviours_of_an_environment_are_played_once(no_engines, monkeypatch):
    place, starts = no_engines / "facts", []
    place.mkdir(parents=True)

    def play(config, acts, *, rows, episodes, seed):
        starts.append(acts)
        env = PendulumEnv(EnvOptions("Mjlab-Pendulum"), rows)
        for act in acts:
            yield from play_rounds(env, act, episodes=episodes, seed=seed)

    monkeypatch.setattr(facts, "read_facts", lambda *_: place)
    monkeypatch.setattr(facts, "play_in_engine", play)
    config, acts = TrainConfig(env_id=TRIAL), ("zero", "random")
    first = record_behaviours(config, acts, episodes=2, seed=0)
    again = record_behaviours(config, acts, episodes=2, seed=0)
    assert len(starts) == 1
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one["obs"], other["obs"])
    assert not np.array_equal(first[0]["action"], first[2]["action"])
    record_behaviours(config.with_updates(max_episode_steps=9), acts, episodes=2, seed=0)
    assert len(starts) == 2
    for file in place.glob("behaviours/*/1.npz"):
        file.write_bytes(b"half of a")
    assert record_behaviours(config, acts, episodes=2, seed=0)[1].length == first[1].length
    assert len(starts) == 3
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert len(record_behaviours(config, acts, episodes=2, seed=0)) == 4
    assert len(starts) == 4


def test_a_python_that_the_engine_does_not_take_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"needs Python 3\.11 or"):
        install.find_python(ENGINES["mjlab"], str(tmp_path / "none"))


def test_an_installation_counts_once_it_is_complete_and_of_this_version(no_engines):
    home = no_engines / "mjlab"
    home.mkdir(parents=True)
    assert find_installed("mjlab") is None
    versions = dict(pin.split("==") for pin in ENGINES["mjlab"].requirements)
    for other in ({"mjlab": "0.1"}, {"torch": "1.0"}):
        write_installation(home, sys.executable, **other)
        with pytest.raises(EngineMissing):
            require_installed("mjlab")
    write_installation(home, sys.executable, torch=f"{versions['torch']}+cpu")
    assert require_installed("mjlab").python == Path(sys.executable)


def test_installing_says_what_it_will_take_before_it_starts(no_sandbox, no_engines):
    def told() -> str:
        result = CliRunner().invoke(app, ["engines", "install", "mjlab", "--python", "none"])
        assert result.exit_code
        return f"{result.output} {result.stderr}"

    assert "only checked" in told()
    (no_engines / "mjlab" / "engine.json").unlink()
    assert "about 3 GB and 10 minutes" in " ".join(told().split())


def test_kernels_are_linked_into_a_run_and_kept_from_processes_without_rewards(no_engines):
    home, run = no_engines / "mjlab", no_engines / "run"
    for name in ("wp_a_1", "wp_b_2_p12_t34"):
        (run / "kernels" / "1.0" / name).mkdir(parents=True)
        (run / "kernels" / "1.0" / name / "a.o").write_bytes(b"code")
    facts._keep_kernels(run / "kernels", home / "kernels")
    assert [path.name for path in (home / "kernels" / "1.0").iterdir()] == ["wp_a_1"]
    write_installation(home, sys.executable)
    around = facts.surroundings(TrainConfig(env_id=TRIAL), no_engines / "next")
    link = no_engines / "next" / "kernels" / "1.0" / "wp_a_1" / "a.o"
    assert link.is_symlink()
    assert link.read_bytes() == b"code"
    assert around.env["WARP_CACHE_PATH"] == str(no_engines / "next" / "kernels")
    assert around.readable == (home / "kernels",)


def cache_solver(kernels, name, code):
    """Cache a solver as Warp does: its folder is renamed to `lto`, or its file is moved there."""
    built = kernels / "1.0" / "lto_p1_t1"
    built.mkdir(parents=True)
    (built / name).write_text(code)
    lto = kernels / "1.0" / "lto"
    try:
        built.rename(lto)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        if not (lto / name).exists():
            (built / name).rename(lto / name)
        shutil.rmtree(built)
    return (lto / name).read_text()


def test_second_environment_adds_solvers_to_the_first_ones(no_engines):
    home = no_engines / "mjlab"
    home.mkdir(parents=True)
    write_installation(home, sys.executable)
    for run, solvers in {"cartpole": ["a"], "g1": ["a", "b"], "go1": ["b", "c"]}.items():
        kernels = no_engines / run / "kernels"
        facts.surroundings(TrainConfig(env_id=TRIAL), kernels.parent)
        first = {"a": "cartpole", "b": "g1", "c": "go1"}
        assert [cache_solver(kernels, name, run) for name in solvers] == [
            first[name] for name in solvers
        ]
        facts._keep_kernels(kernels, home / "kernels")
    kept = {path.name: path.read_text() for path in (home / "kernels" / "1.0" / "lto").iterdir()}
    assert kept == first


def test_warp_caches_beside_shared_kernels_and_writes_through_no_link(tmp_path, monkeypatch):
    """A folder may be shared in part: of another device, or without one of a solver's files."""
    build = types.ModuleType("warp._src.build")
    build.safe_rename = None
    warp, source = types.ModuleType("warp"), types.ModuleType("warp._src")
    source.build = build
    for module in (warp, source, build):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    engine_env.replace_warp_rename()
    shared, built, cached = tmp_path / "shared.lto", tmp_path / "lto_p1_t1", tmp_path / "lto"
    shared.write_text("shared")
    built.mkdir()
    cached.mkdir()
    (cached / "a.lto").symlink_to(shared)
    for name in ("a.lto", "a_fatbin.lto"):
        (built / name).write_text("new")
    build.safe_rename(str(built), str(cached))
    assert shared.read_text() == (cached / "a.lto").read_text() == "shared"
    assert (cached / "a_fatbin.lto").read_text() == "new"


def test_a_run_replaces_a_shared_kernel_only_for_itself(no_engines):
    home = no_engines / "mjlab"
    home.mkdir(parents=True)
    write_installation(home, sys.executable)
    shared = home / "kernels" / "1.0" / "wp_a_1" / "a.o"
    shared.parent.mkdir(parents=True)
    shared.write_text("code")
    facts.surroundings(TrainConfig(env_id=TRIAL), no_engines / "run")
    own = no_engines / "run" / "kernels" / "1.0" / "wp_a_1"
    (own / "new").write_text("other code")
    (own / "new").replace(own / "a.o")
    facts._keep_kernels(own.parent.parent, home / "kernels")
    assert (own / "a.o").read_text() == "other code"
    assert shared.read_text() == "code"


def test_what_runs_in_an_engines_python_takes_an_older_mujoco():
    """Engines pin a MuJoCo without `mujoco.batch`, and have no JAX."""
    code = """
import sys
import types
sys.modules.update({"mujoco.batch": None, "jax": None})
import p2p.agents.returns_worker, p2p.training.engines.child, p2p.training.reward_check
import p2p.training.training_loop, p2p.training.engines.engine_env, p2p.training.worker
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.fixture
def no_sandbox(no_engines, tmp_path, monkeypatch):
    """A kernel without Landlock, and an engine whose Python lacks the engine's packages."""
    script = tmp_path / "enter_without.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(launch.PACKAGE).parent)!r})\n"
        "from p2p.sandbox import kernel; kernel.landlock_abi = lambda: 0\n"
        "from p2p.sandbox import enter; enter._main()\n"
    )
    monkeypatch.setattr("p2p.sandbox.enter.__file__", str(script))
    (no_engines / "mjlab").mkdir(parents=True)
    bare = getattr(
        sys, "_base_executable", sys.executable
    )  # nothing to import, nothing to wait for
    write_installation(no_engines / "mjlab", bare)


def test_an_engine_plays_without_a_sandbox_only_where_that_is_said(no_sandbox):
    config, play = TrainConfig(env_id=TRIAL), {"episodes": 1, "seed": 0}
    with pytest.raises(SandboxUnavailable, match="Landlock"):
        record_episodes(config, "zero", **play)
    set_unsafe_local(True)
    with pytest.raises(facts.EngineFailed, match="No module named"):
        record_episodes(config, "zero", **play)


@pytest.mark.parametrize(
    "command",
    [
        ["envs", TRIAL],
        ["run", "keep the pole up", "--env", TRIAL, "--model", "builtin"],
    ],
)
def test_a_command_starts_an_engine_without_a_sandbox_only_where_that_is_said(no_sandbox, command):
    def told(*words: str) -> str:
        result = CliRunner().invoke(app, [*command, *words])
        assert result.exit_code
        return f"{result.output} {result.exception}"

    assert "No module named" not in told()
    assert "No module named" in told("--unsafe-local")


def test_elu_is_what_torch_computes():
    shape = NetworkShape(3, 2, (5,), "elu", critic=False)
    tensors = initial_parameters(
        shape, np.random.default_rng(0), ortho_init=False, log_std_init=0.0
    )
    obs = np.random.default_rng(1).normal(size=(7, 3)).astype(np.float32) * 100
    hidden, last = shape.hidden("policy_net")[0], "action_net"
    layer = {name: torch.from_numpy(value) for name, value in tensors.items()}
    inner = torch.nn.functional.elu(
        torch.from_numpy(obs) @ layer[f"{hidden}.weight"].T + layer[f"{hidden}.bias"]
    )
    expected = inner @ layer[f"{last}.weight"].T + layer[f"{last}.bias"]
    np.testing.assert_allclose(action_mean(shape, tensors, obs, np), expected, atol=1e-5)


def test_a_policy_without_its_critic_acts_alike_in_every_file(tmp_path):
    import onnx.reference

    from p2p.training.policies.portable import save_onnx, save_torchscript
    from p2p.training.policies.sb3_export import save_sb3_zip

    shape = NetworkShape(3, 2, (8, 8), "elu", critic=False)
    unbounded = np.full(2, np.inf, np.float32)
    policy = Policy(
        shape=shape,
        tensors=initial_parameters(
            shape, np.random.default_rng(0), ortho_init=False, log_std_init=0.0
        ),
        obs_mean=np.array([0.1, -0.2, 0.3]),
        obs_var=np.array([1.0, 4.0, 0.25]),
        action_low=-unbounded,
        action_high=unbounded,
        obs_clip=1e6,
        obs_epsilon=0.0,
    )
    obs = np.random.default_rng(1).normal(size=(6, 3))
    acted = policy.act(obs)
    policy.save(tmp_path / "policy.safetensors")
    np.testing.assert_array_equal(Policy.load(tmp_path / "policy.safetensors").act(obs), acted)
    save_torchscript(policy, tmp_path / "policy.pt")
    script = torch.jit.load(tmp_path / "policy.pt")
    single = obs.astype(np.float32)
    np.testing.assert_allclose(script(torch.from_numpy(single)), acted, atol=1e-5)
    save_onnx(policy, tmp_path / "policy.onnx")
    session = onnx.reference.ReferenceEvaluator(str(tmp_path / "policy.onnx"))
    np.testing.assert_allclose(session.run(None, {"observation": single})[0], acted, atol=1e-5)
    from stable_baselines3 import PPO

    config = TrainConfig(env_id=TRIAL, activation="elu", net_arch=(8, 8))
    save_sb3_zip(policy, config, tmp_path / "policy.zip", obs)
    loaded = PPO.load(tmp_path / "policy.zip", device="cpu")
    np.testing.assert_allclose(loaded.predict(obs, deterministic=True)[0], acted, atol=1e-5)


PENDULUM = """
<mujoco><option timestep="0.01"/><worldbody><body name="pole" pos="0 0 1">
<joint name="hinge" type="hinge" axis="0 1 0"/>
<geom type="capsule" fromto="0 0 0 0 0 .5" size=".05"/>
</body></worldbody><actuator><motor name="motor" joint="hinge" gear="2"/></actuator></mujoco>
"""


class PendulumEnv(EngineEnv):
    """The least that an engine can be: MuJoCo's own steps behind tensors."""

    def __init__(self, options: EnvOptions, num_envs: int) -> None:
        self.env_id, self.num_envs, self.device = "Mjlab-Pendulum", num_envs, "cpu"
        self.dt, self.frame_skip, self.max_episode_steps = 0.01, 1, 5
        self.model = mujoco.MjModel.from_xml_string(PENDULUM)
        self.start_qpos = self.model.qpos0
        self.observation_terms = (EngineTerm("angle", ("",)), EngineTerm("speed", ("",)))
        self.action_terms = (EngineTerm("effort", ("hinge",)),)
        self.terminations = ()
        self.rows = [mujoco.MjData(self.model) for _ in range(num_envs)]
        self.count = torch.zeros(num_envs, dtype=torch.long)
        super().__init__(options)

    def begin(self, rows: torch.Tensor | None, seed: int | None) -> Groups:
        for i in range(self.num_envs) if rows is None else rows.tolist():
            mujoco.mj_resetData(self.model, self.rows[i])
            self.rows[i].qpos[:] = 0.1 * (i + 1)
            self.count[i] = 0
        return self._seen()

    def advance(self, action: torch.Tensor) -> Reached:
        for data, effort in zip(self.rows, action, strict=True):
            data.ctrl[:] = effort.numpy()
            mujoco.mj_step(self.model, data)
            mujoco.mj_forward(self.model, data)
        self.count += 1
        over = self.count >= self.max_episode_steps
        return Reached(self._seen(), torch.ones(self.num_envs), torch.zeros_like(over), over)

    def _seen(self) -> Groups:
        state = torch.tensor([[*data.qpos, *data.qvel] for data in self.rows])
        return {"actor": state, "critic": state}

    def field(self, name: str) -> torch.Tensor | None:
        if name not in ("qpos", "qvel", "ctrl", "xmat"):
            return None
        return torch.tensor(np.array([getattr(data, name) for data in self.rows]))

    def write_model(self, folder: Path) -> None:
        (folder / "scene.xml").write_text(PENDULUM)

    def close(self) -> None:
        pass


def test_the_last_state_of_an_episode_is_seen_before_the_next_begins():
    env = PendulumEnv(EnvOptions("Mjlab-Pendulum", quantities=frozenset({"body_up", "energy"})), 2)
    first = env.reset_batch(0)
    for _ in range(env.max_episode_steps):
        step = env.step_batch(np.ones((2, 1)))
    assert step.truncated.all()
    np.testing.assert_allclose(step.obs, first)
    assert (step.next_obs[:, 0] > step.obs[:, 0]).all()
    angle = step.next_obs[:, 0]
    np.testing.assert_allclose(env.trajectory_fields()["qpos"][:, 0], angle)
    np.testing.assert_allclose(step.info["body_up"][:, 1, 0], np.sin(angle), atol=1e-6)
    np.testing.assert_allclose(env.side_info()["mj_data"].joint("hinge").qpos[:, 0], angle)
    assert env.row_side_info(1)["mj_data"].qpos[0] == pytest.approx(angle[1])


def test_mj_data_of_a_batch_is_made_once_and_tells_the_present_states():
    """MuJoCo reserves megabytes for each: one a step used up the sandbox's memory."""
    env = PendulumEnv(EnvOptions("Mjlab-Pendulum"), 2)
    env.reset_batch(0)
    data = env.side_info()["mj_data"]
    step = env.step_batch(np.ones((2, 1)))
    assert env.side_info()["mj_data"] is data
    np.testing.assert_allclose(data.qpos[:, 0], step.next_obs[:, 0])


def test_exported_policies_tell_a_robots_controller_what_it_must_know(tmp_path):
    import onnx

    from p2p.training.policies.portable import save_onnx, save_torchscript

    env = PendulumEnv(EnvOptions("Mjlab-Pendulum"), 1)
    env.action_terms = (
        EngineTerm("joint_pos", ("hinge",), kind="JointPositionAction", scale=(0.25,),
                   offset=(0.1,)),
    )  # fmt: skip
    metadata = read_policy_metadata("mjlab", "1.6.0", env)
    assert (metadata.step_dt, metadata.physics_dt) == (0.01, 0.01)
    assert metadata.action_scale == (0.25,)
    timed = metadata.with_time()
    assert timed.observation_names == ("angle", "speed", "episode_share")
    shape = NetworkShape(2, 1, (4,), "elu", critic=False)
    bound = np.full(1, np.inf, np.float32)
    policy = Policy(
        shape=shape,
        tensors=initial_parameters(
            shape, np.random.default_rng(0), ortho_init=False, log_std_init=0.0
        ),
        obs_mean=np.zeros(2),
        obs_var=np.ones(2),
        action_low=-bound,
        action_high=bound,
    )
    save_torchscript(policy, tmp_path / "policy.pt", metadata)
    save_onnx(policy, tmp_path / "policy.onnx", metadata)
    extra = {"metadata.json": ""}
    torch.jit.load(tmp_path / "policy.pt", _extra_files=extra)
    properties = {p.key: p.value for p in onnx.load(tmp_path / "policy.onnx").metadata_props}
    assert json.loads(extra["metadata.json"]) == json.loads(properties["metadata.json"])
    assert PolicyMetadata.model_validate_json(properties["metadata.json"]) == metadata
    # As mjlab writes them, for programs that read its own files.
    assert properties["observation_names"] == "angle,speed"
    assert properties["observation_terms_clip"] == "-inf;inf,-inf;inf"
    assert properties["action_scale"] == "0.25"


def test_the_share_of_the_episode_stands_last_where_the_policy_observes_it():
    env = PendulumEnv(EnvOptions("Mjlab-Pendulum", observe_time=True), 2)
    assert env.reset_batch(0)[:, -1].tolist() == [0.0, 0.0]
    assert env.step_batch(np.zeros((2, 1))).obs[:, -1].tolist() == pytest.approx([0.2, 0.2])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("np.exp(-np.square(next_obs[..., 0])) + np.sum(action, axis=-1)", ""),
        ("np.where(next_obs[..., 0] > 0.2, 1.0, np.clip(obs[..., 1], -1, 1))", ""),
        ("np.linalg.norm(next_obs, axis=-1)", ""),
        ("np.interp(next_obs[..., 0], [0, 1], [0, 1])", "on tensors"),
        ('info["body_up"][..., 1, 2]', ""),
        ('info["energy"]', "row by row"),
    ],
)
def test_a_reward_takes_tensors_where_it_gives_what_it_gives_on_arrays(body, reason):
    code = (
        f"import numpy as np\n\ndef reward_fn(obs, action, next_obs, info):\n    value = {body}\n"
    )
    code += "    return value, {'value': value}\n"
    read = frozenset(name for name in ("body_up", "energy") if name in body)
    env = PendulumEnv(EnvOptions("Mjlab-Pendulum", quantities=read), 3)
    runner = RewardRunner(code, 3, batched=True, engine="mjlab")
    reward, why = decide_tensors(code, env, runner, engine="mjlab")
    assert (reward is None) == bool(reason)
    assert reason in why


@pytest.mark.parametrize(
    ("bound", "reason"), [("0.0", ""), ("np.interp(0, [0], [0])", "on tensors")]
)
def test_failed_is_the_same_on_tensors_as_on_arrays(bound, reason):
    code = f"""
import numpy as np

def reward_fn(obs, action, next_obs, info):
    return next_obs[..., 0], {{"value": next_obs[..., 0]}}

def failed(obs, action, next_obs, info):
    return (next_obs[..., 0] > {bound}) | (info["body_up"][..., 1, 2] < 0.5)
"""
    env = PendulumEnv(EnvOptions("Mjlab-Pendulum", quantities=frozenset({"body_up"})), 3)
    runner = RewardRunner(code, 3, batched=True, engine="mjlab")
    reward, why = decide_tensors(code, env, runner, engine="mjlab")
    assert (reward is None) == bool(reason)
    assert reason in why
    if reward is not None:
        obs = torch.tensor([[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])[
            :, : env.single_observation_space.shape[0]
        ]
        info = {"body_up": torch.tensor([0.9, 0.9, 0.1])[:, None, None].expand(3, 2, 3)}
        step = TensorTransition(obs, torch.zeros(3, 1), obs, info, torch.ones(3, dtype=torch.bool))
        assert reward(step)[2].tolist() == [False, True, True]


def test_a_step_that_restarts_rows_tells_where_it_led_and_what_is_next():
    apart, at_once = (
        PendulumEnv(EnvOptions("Mjlab-Pendulum", quantities=frozenset({"body_up"})), 2)
        for _ in range(2)
    )
    apart.reset_batch(0)
    at_once.reset_batch(0)
    for _ in range(2 * apart.max_episode_steps):
        expected = apart.step_batch(np.ones((2, 1)))
        reached, info, groups = at_once.step_and_restart(torch.ones(2, 1))
        np.testing.assert_allclose(reached.groups["actor"], expected.next_obs, atol=1e-6)
        np.testing.assert_allclose(info["body_up"], expected.info["body_up"], atol=1e-6)
        np.testing.assert_allclose(groups["actor"], expected.obs, atol=1e-6)


def test_quantities_are_the_same_of_tensors_as_of_arrays():
    env = gymnasium.make("Humanoid-v5")
    env.reset(seed=0)
    for _ in range(20):
        env.step(np.zeros(17))
    data, robot = env.unwrapped.data, Robot.of(env)
    wanted = {field for name in names_of(robot) for field in QUANTITIES[name].fields}
    fields = {name: np.array(getattr(data, name))[None] for name in wanted}
    arrays = compute(robot, names_of(robot), fields.__getitem__)
    tensors = measure(robot, names_of(robot), lambda name: torch.as_tensor(fields[name]))
    assert len(arrays) > 10
    for name, array in arrays.items():
        np.testing.assert_allclose(tensors[name].numpy(), array, atol=1e-9, err_msg=name)


# --- on the real engine ---------------------------------------------------------------------------

needs_mjlab = pytest.mark.skipif(
    find_installed("mjlab") is None, reason="mjlab is not installed: p2p engines install mjlab"
)


def small_run(**changes) -> TrainConfig:
    fields = {
        "num_envs": 8,
        "num_steps": 16,
        "num_minibatches": 2,
        "update_epochs": 2,
        "total_timesteps": 512,
        "max_episode_steps": 20,
        "num_evals": 2,
        "num_eval_envs": 4,
        "num_eval_rounds": 1,
        "checkpoint_interval": 128,
        "activation": "elu",
        "target_kl": 0.01,
    }
    return TrainConfig(env_id=TRIAL, **{**fields, **changes})


@pytest.mark.slow
@needs_mjlab
def test_a_run_on_mjlab_leaves_what_a_run_on_mujoco_leaves(tmp_path):
    from stable_baselines3 import PPO

    from p2p.training.replay import replay

    record = IterationRecord(tmp_path / "session_x" / "iter_1")
    notes = []
    summary = run_training(
        small_run(), REWARD, record, on_message=lambda m: notes.append(getattr(m, "note", ""))
    )
    assert summary.backend == "rsl_rl"
    assert summary.selected_step == 512
    assert "on cpu" in notes, "no copies: the reward takes tensors"
    assert [path.name for path in record.videos_dir.glob("*.mp4")] == ["eval_512_median.mp4"]
    episode = RecordedEpisode.load(record.trajectory_file(512, "median"))
    np.testing.assert_allclose(episode["next_obs"][:, 0], episode["qpos"][:, 0], atol=1e-6)
    np.testing.assert_allclose(episode["next_obs"][:, 1], np.cos(episode["qpos"][:, 1]), atol=1e-5)
    folder = record.checkpoints_dir / "step_512"
    acted = Policy.load(folder / "policy.safetensors").act(episode["obs"].astype(np.float64))
    np.testing.assert_allclose(acted, episode["action"], atol=1e-4)
    loaded = PPO.load(folder / "policy.zip", device="cpu")
    predicted = loaded.predict(episode["obs"].astype(np.float64), deterministic=True)[0]
    np.testing.assert_allclose(predicted, acted, atol=1e-4)
    export_run(record, small_run(), 512, tmp_path / "exported")
    extra = {"metadata.json": ""}
    torch.jit.load(tmp_path / "exported" / "policy.pt", _extra_files=extra)
    metadata = json.loads(extra["metadata.json"])
    assert metadata["joint_names"] == ["slider", "hinge_1"]
    assert metadata["run_path"] == "session_x/iter_1"
    again = [
        replay(record, small_run(), step=512, episodes=4, seed=5).result.all_returns
        for _ in range(2)
    ]
    assert again[0] == again[1]


@pytest.mark.slow
@needs_mjlab
def test_stable_baselines_trains_on_mjlab_and_resumes(tmp_path):
    record = IterationRecord(tmp_path / "session_x" / "iter_1")
    config = small_run(backend="sb3", target_kl=None)
    half = RunOptions(videos=False, until=256, pause=True)
    run_training(config, REWARD, record, options=half)
    summary = run_training(config, REWARD, record, options=RunOptions(videos=False))
    assert summary.backend == "sb3"
    assert summary.selected_step == 512
    assert [line["global_step"] for line in record.parse_scalars()[0]] == [128, 256, 384, 512]
    episode = RecordedEpisode.load(record.trajectory_file(512, "median"))
    policy = Policy.load(record.checkpoints_dir / "step_512" / "policy.safetensors")
    acted = policy.act(episode["obs"].astype(np.float64))
    np.testing.assert_allclose(acted, episode["action"], atol=1e-4)


def run_in_mjlab(code: str) -> Any:
    """What a program in the engine's own Python prints last, as JSON."""
    answer = subprocess.run(
        [require_installed("mjlab").python, "-c", code],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(launch.PACKAGE).parent),
            "WARP_CACHE_PATH": str(engine_folder("mjlab") / "kernels"),
            **ENGINES["mjlab"].env,
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return json.loads(answer.stdout.splitlines()[-1])


@pytest.mark.slow
@needs_mjlab
def test_robots_of_mjlab_are_shoved_in_training_alone():
    code = """
import json
from p2p.config import EnvOptions
from p2p.training.engines.mjlab import make
modes = [
    make(EnvOptions("Mjlab-Velocity-Flat-Unitree-Go1", training=t), 1).env.event_manager
    .available_modes for t in (True, False)
]
print()
print(json.dumps([sorted(each) for each in modes]))
"""
    in_training, in_evaluation = run_in_mjlab(code)
    assert "interval" in in_training
    assert "interval" not in in_evaluation
    assert "reset" in in_evaluation


@pytest.mark.slow
@needs_mjlab
def test_a_policy_carries_what_mjlabs_own_exporter_writes_about_the_robot():
    """mjlab's deployment tools read these names."""
    env_id = "Mjlab-Velocity-Flat-Unitree-Go1"
    code = f"""
import json
import mjlab.tasks
from mjlab.envs import ManagerBasedRlEnv
from mjlab.rl.exporter_utils import get_base_metadata
from mjlab.tasks.registry import load_env_cfg
cfg = load_env_cfg({env_id!r})
cfg.scene.num_envs = 1
print()
print(json.dumps(get_base_metadata(ManagerBasedRlEnv(cfg, device="cpu"), "")))
"""
    own = facts.read_facts("mjlab", env_id) / "policy_metadata.json"
    metadata = PolicyMetadata.model_validate_json(own.read_bytes())
    theirs = run_in_mjlab(code)
    for name in ("joint_names", "command_names", "observation_names"):
        assert list(metadata[name]) == theirs[name], name
    for name in ("default_joint_pos", "joint_stiffness", "joint_damping", "action_scale"):
        np.testing.assert_allclose(metadata[name], theirs[name], rtol=1e-6, err_msg=name)
    assert metadata.action_offset == metadata.default_joint_pos
    assert metadata.action_joint_names == metadata.joint_names
    assert (metadata.step_dt, metadata.physics_dt) == (0.02, 0.005)


@pytest.mark.slow
@needs_mjlab
def test_a_paused_run_on_mjlab_resumes_where_it_stood(tmp_path):
    record = IterationRecord(tmp_path / "session_x" / "iter_1")
    half = RunOptions(videos=False, until=256, pause=True)
    run_training(small_run(), REWARD, record, options=half)
    starts = []
    run_training(
        small_run(),
        REWARD,
        record,
        options=RunOptions(videos=False),
        on_message=lambda m: starts.append(getattr(m, "start_step", None)),
    )
    assert 256 in starts
    steps = [line["global_step"] for line in record.parse_scalars()[0]]
    assert steps == [128, 256, 384, 512]


@pytest.fixture
def mjlab_without_facts(tmp_path, monkeypatch):
    """The installed mjlab as it is before its first run, but for kernels."""
    home = tmp_path / "engines" / "mjlab"
    home.mkdir(parents=True)
    shutil.copy(engine_folder("mjlab") / "engine.json", home)
    (home / "kernels").symlink_to(engine_folder("mjlab") / "kernels")
    monkeypatch.setenv("P2P_ENGINES_DIR", str(tmp_path / "engines"))
    get_settings.cache_clear()
    yield
    get_settings.cache_clear()


@pytest.mark.slow
@needs_mjlab
@pytest.mark.parametrize("while_it", ["reads facts", "trains"])
def test_a_cancelled_run_on_mjlab_stops_leaves_no_process_and_resumes(tmp_path, request, while_it):
    if while_it == "reads facts":
        request.getfixturevalue("mjlab_without_facts")
    record = IterationRecord(tmp_path / "session_x" / "iter_1")
    config = small_run(total_timesteps=20_480, num_evals=1, num_eval_envs=2)
    began: list[float] = []
    processes: list[psutil.Process] = []

    def cancel() -> None:
        processes.extend(psutil.Process().children(recursive=True))
        began.append(time.monotonic())
        record.set_status("cancelled")

    def heard(message: WorkerMessage) -> None:
        if while_it == "trains" and isinstance(message, StateSaved) and not began:
            cancel()

    def cancel_soon() -> None:
        wait_until(lambda: psutil.Process().children(recursive=True))
        time.sleep(3)
        cancel()

    if while_it == "reads facts":
        threading.Thread(target=cancel_soon, daemon=True).start()
    with pytest.raises(TrainingCancelled):
        run_training(config, REWARD, record, options=RunOptions(videos=False), on_message=heard)
    assert time.monotonic() - began[0] < 60
    assert processes
    wait_until(lambda: not any(process.is_running() for process in processes))
    assert record.derive_status() == "cancelled"
    starts = []
    run_training(
        config,
        REWARD,
        record,
        options=RunOptions(videos=False, until=1024, pause=True),
        on_message=lambda m: starts.append(getattr(m, "start_step", None)),
    )
    first = next(step for step in starts if step is not None)
    assert (first >= 128) == (while_it == "trains")
    assert record.parse_scalars()[0][-1]["global_step"] == 1024
    assert record.derive_status() == "queued"


@pytest.mark.slow
@needs_mjlab
def test_a_reward_on_mjlab_has_no_files_no_network_and_no_processes(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    code = f'''
import socket
import subprocess

import numpy as np


def tried(action):
    try:
        action()
    except (OSError, RuntimeError):
        return 0.0
    return 1.0


TRIES = {{
    "read": lambda: open({str(secret)!r}).read(),
    "passwords": lambda: open("/etc/passwd").read(),
    "write": lambda: open({str(tmp_path / "left.txt")!r}, "w").write("x"),
    "kernels": lambda: open({str(engine_folder("mjlab") / "kernels" / "planted")!r}, "w").close(),
    "connect": lambda: socket.create_connection(("127.0.0.1", 9), timeout=1),
    "start": lambda: subprocess.run(["/bin/true"], check=True),
}}
DONE = {{name: tried(action) for name, action in TRIES.items()}}


def reward_fn(obs, action, next_obs, info):
    """Breaks out."""
    zero = np.zeros(np.shape(action)[:-1])
    terms = {{name: zero + value for name, value in DONE.items()}}
    return sum(terms.values()), terms
'''
    record = IterationRecord(tmp_path / "session_x" / "iter_1")
    options = RunOptions(videos=False)
    run_training(small_run(total_timesteps=128, num_evals=1), code, record, options=options)
    result = record.parse_scalars()[1][0]
    assert result["mean_return"] == 0.0
    assert not (tmp_path / "left.txt").exists()


@pytest.mark.slow
@needs_mjlab
def test_a_reward_on_mjlab_that_is_no_number_ends_the_run_and_is_named(tmp_path):
    code = """
import numpy as np


def reward_fn(obs, action, next_obs, info):
    late = np.where(np.abs(next_obs[..., 0]) >= 0, np.nan, 0.0)
    return late, {"late": late}
"""
    record = IterationRecord(tmp_path / "session_x" / "iter_1")
    with pytest.raises(TrainingFailed, match="'late' is nan") as failed:
        run_training(small_run(), code, record, options=RunOptions(videos=False))
    assert failed.value.kind == "reward"


@pytest.mark.slow
@needs_mjlab
def test_a_session_on_mjlab_runs_from_the_prompt_to_a_verdict(tmp_path):
    words = [
        "run", "keep the pole upright", "--env", TRIAL, "--model", "builtin", "--steps", "1000",
        "--iterations", "1", "--candidates", "1", "--judge-episodes", "2",
        "--confirm-episodes", "2", "--no-videos", "--set", "num_envs=8", "--set", "num_evals=1",
        "--set", "max_episode_steps=40", "--runs-dir", str(tmp_path), "--json",
    ]  # fmt: skip
    result = CliRunner().invoke(app, words)
    iteration = next(tmp_path.glob("session_*/iter_1"))
    judgment = IterationRecord(iteration).read_judgment()
    assert judgment is not None, result.output
    assert judgment.intent_score is not None, result.output
