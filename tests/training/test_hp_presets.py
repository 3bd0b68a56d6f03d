import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from p2p.config import TUNABLE_BOUNDS, TrainConfig
from p2p.contracts import EvalReady, Finished, ScalarsReady, WorkerMessage
from p2p.rewards import list_rewards
from p2p.sandbox import gpu
from p2p.training import hp_presets
from p2p.training.engines.table import engine_environments
from p2p.training.env_spec import gymnasium_env_ids
from p2p.training.hp_presets import PRESETS, QUICK, config_from_preset, preset_for, quick_config
from p2p.training.training_loop import TrainContext
from p2p.training.worker import train

ENV_IDS = gymnasium_env_ids()


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_every_preset_is_a_valid_config_inside_the_bounds(env_id: str) -> None:
    config = config_from_preset(env_id)
    assert config.env_id == env_id
    for name, value in preset_for(env_id).items():
        assert getattr(config, name) == value
        if name in TUNABLE_BOUNDS:
            low, high = TUNABLE_BOUNDS[name]
            assert low <= value <= high, name


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_echoing_a_preset_as_a_revision_changes_nothing(env_id: str) -> None:
    config = config_from_preset(env_id)
    tunable = {n: getattr(config, n) for n in config.tunable if getattr(config, n) is not None}
    assert config.apply_updates(tunable) == (config, [])


def test_all_current_environments_but_pusher_have_tuned_values() -> None:
    assert {env_id for env_id in ENV_IDS if not preset_for(env_id)} == {"Pusher-v5"}
    assert config_from_preset("Pusher-v5") == TrainConfig(env_id="Pusher-v5")
    assert {env_id.removesuffix("-v5") for env_id in ENV_IDS} == {*PRESETS, "Pusher"}


@pytest.mark.parametrize(
    ("env_id", "batch", "minibatch", "rate"),
    [
        ("HalfCheetah-v5", 512, 64, 2.0633e-05),
        ("Reacher-v5", 512, 32, 0.000104019),
        ("HumanoidStandup-v5", 512, 32, 2.55673e-05),
        ("Swimmer-v5", 4096, 256, 6e-4),
        ("InvertedPendulum-v5", 32, 32, 0.000222425),
        ("InvertedDoublePendulum-v5", 128, 128, 0.000155454),
    ],
)
def test_an_update_sees_as_much_data_as_it_was_tuned_for(
    env_id: str, batch: int, minibatch: int, rate: float
) -> None:
    config = config_from_preset(env_id)
    assert (config.batch_size, config.minibatch_size) == (batch, minibatch)
    assert config.learning_rate == rate


@pytest.mark.parametrize(
    ("overrides", "rollout", "minibatch", "faster"),
    [
        ({"num_envs": 32}, (32, 16), 64, 1),  # shorter rollouts first
        ({"num_envs": 512}, (512, 16), 256, 2),  # then gently grow minibatch and rate
        ({"num_steps": 32}, (8, 32), 64, 1),
        ({"num_envs": 16, "num_steps": 128, "num_minibatches": 4}, (16, 128), 512, 2**0.5),
        ({"num_envs": 512, "learning_rate": 4.1266e-05}, (512, 16), 256, 2),
    ],
)
def test_a_preset_is_fitted_to_what_is_given(
    overrides: dict[str, Any], rollout: tuple[int, int], minibatch: int, faster: float
) -> None:
    config = config_from_preset("HalfCheetah-v5", **overrides)
    assert (config.num_envs, config.num_steps) == rollout
    assert config.minibatch_size == minibatch
    assert config.learning_rate == pytest.approx(2.0633e-05 * faster)


def test_older_versions_share_the_preset_and_unknown_ones_get_defaults() -> None:
    assert preset_for("Ant-v4") == preset_for("Ant-v5")
    assert preset_for("package:Mine-v0") == {}


@pytest.mark.parametrize(
    "env_id",
    [
        pytest.param(env_id, marks=[] if env_id == "Hopper-v5" else [pytest.mark.slow])
        for env_id in ENV_IDS
    ],
)
def test_every_preset_trains(tmp_path: Path, env_id: str) -> None:
    preset = config_from_preset(env_id)
    config = preset.with_updates(
        total_timesteps=preset.batch_size, max_episode_steps=60, num_evals=1,
        num_eval_envs=2, num_eval_rounds=1, num_threads=1,
    )  # fmt: skip
    heard: list[WorkerMessage] = []
    reward = list_rewards(env_id)[0].read()
    train(TrainContext(config, reward, tmp_path, heard.append))
    (scalars,) = [message.scalars for message in heard if isinstance(message, ScalarsReady)]
    assert scalars.global_step == preset.batch_size
    assert all(map(math.isfinite, scalars.values.values()))
    # The policy moves, and not so far that the next rollout is another task.
    assert scalars.values["grad_norm"] > 0
    assert 0 < scalars.values["kl_mean_term"] < 1
    (result,) = [message.result for message in heard if isinstance(message, EvalReady)]
    assert all(map(math.isfinite, result.all_returns))
    assert isinstance(heard[-1], Finished)


@pytest.mark.parametrize("env_id", [*gymnasium_env_ids(), "Unheard-v0", "NoVersion"])
def test_every_environment_has_quick_settings_within_the_bounds(env_id: str) -> None:
    config = quick_config(env_id)
    assert config.env_id == env_id
    for name, (low, high) in TUNABLE_BOUNDS.items():
        value = getattr(config, name)
        assert value is None or low <= value <= high, name


def test_another_algorithm_has_settings_of_its_own() -> None:
    quick = quick_config("Ant-v5", algorithm="sac", gamma=0.98)
    assert (quick.algorithm, quick.net_arch, quick.gamma) == ("sac", (128, 128), 0.98)
    long = config_from_preset("Ant-v5", algorithm="sac", num_envs=4)
    assert (long.num_envs, long.net_arch) == (4, quick.net_arch)
    assert long.total_timesteps > quick.total_timesteps


def test_gymnasiums_environments_are_all_measured() -> None:
    assert {env_id.rpartition("-v")[0] for env_id in gymnasium_env_ids()} == set(QUICK)


@pytest.mark.parametrize(
    "overrides",
    [{"num_envs": 3}, {"num_steps": 100}, {"num_envs": 7, "num_steps": 33}, {"num_envs": 1},
     {"num_envs": 2, "num_steps": 16}, {"num_minibatches": 4}],
)  # fmt: skip
def test_what_is_given_counts_and_the_minibatches_fit_it(overrides: dict[str, int]) -> None:
    config = quick_config("Hopper-v5", **overrides)
    assert overrides.items() <= config.model_dump().items()
    assert config.batch_size % config.num_minibatches == 0


# --- engines --------------------------------------------------------------------------------------


G1 = "Mjlab-Velocity-Flat-Unitree-G1"
OWN = {"num_steps": 24, "num_minibatches": 4, "learning_rate": 1e-3, "activation": "elu"}
"""What an engine says of itself; the real one would have to start for it."""
Chosen = Callable[..., TrainConfig]
BOTH = pytest.mark.parametrize("chosen", [config_from_preset, quick_config])


@pytest.fixture
def on_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "CONTROL", tmp_path / "none")
    tell(monkeypatch, OWN)


@pytest.fixture
def on_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "CONTROL", tmp_path)
    tell(monkeypatch, OWN)


def tell(monkeypatch: pytest.MonkeyPatch, preset: dict[str, Any]) -> None:
    """Let every engine have this preset."""
    monkeypatch.setattr(hp_presets, "engine_preset", lambda *_: dict(preset))


@BOTH
@pytest.mark.parametrize(
    ("own_steps", "overrides", "expected"),
    [
        (24, {}, {"num_envs": 16_384, "num_steps": 12, "num_evals": 3, "num_eval_envs": 8}),
        (12, {}, {"num_steps": 12, "activation": "elu", "total_timesteps": 60_000_000}),
        (8, {}, {"num_envs": 16_384, "num_steps": 8}),
        (24, {"num_envs": 4096}, {"num_envs": 4096, "num_steps": 24}),
        (24, {"num_envs": 32_768}, {"num_envs": 32_768, "num_steps": 12}),
        (24, {"device": "cuda:1"}, {"num_envs": 16_384}),
        (24, {"device": "cpu"}, {"num_envs": 64, "num_steps": 24}),
        (24, {"num_envs": 2048, "num_steps": 48, "num_evals": 5}, {}),
    ],
)
def test_a_gpu_is_filled_with_environments_of_short_rollouts(
    on_gpu: None,
    monkeypatch: pytest.MonkeyPatch,
    chosen: Chosen,
    own_steps: int,
    overrides: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    tell(monkeypatch, {**OWN, "num_steps": own_steps})
    config = chosen(G1, **overrides)
    assert {**overrides, **expected}.items() <= config.model_dump().items()


@BOTH
@pytest.mark.parametrize(
    "overrides",
    [{}, {"total_timesteps": 900_000}, {"num_envs": 64}, {"num_envs": 64, "num_steps": 9}],
)
def test_a_run_on_a_gpu_ends_within_hours_and_saves_on_the_way(
    on_gpu: None, chosen: Chosen, overrides: dict[str, int]
) -> None:
    config = chosen(G1, **overrides)
    assert config.total_timesteps / config.batch_size <= 60_000_000 / (16_384 * 12) + 1 or (
        "total_timesteps" in overrides
    )
    assert config.checkpoint_interval < config.total_timesteps / config.num_evals


@BOTH
@pytest.mark.parametrize("machine", ["on_gpu", "on_cpu"])
def test_a_task_without_settings_of_its_own_has_valid_ones(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, chosen: Chosen, machine: str
) -> None:
    request.getfixturevalue(machine)
    tell(monkeypatch, {})
    config = chosen("IsaacContrib-Cartpole-Showcase-Direct")
    assert config.batch_size % config.num_minibatches == 0


@BOTH
def test_a_core_gets_few_environments_and_the_engines_rollout(on_cpu: None, chosen: Chosen) -> None:
    config = chosen(G1)
    assert (config.num_envs, config.num_steps) == (64, 24)
    assert config.checkpoint_interval == TrainConfig().checkpoint_interval
    assert quick_config(G1).total_timesteps == 300_000


@BOTH
@pytest.mark.parametrize("overrides", [{}, {"num_envs": 1001}, {"num_steps": 11}])
@pytest.mark.parametrize("wanted", [1, 4, 5, 7])
def test_minibatches_divide_what_a_gpu_collects(
    on_gpu: None, monkeypatch: pytest.MonkeyPatch, chosen: Chosen, overrides: dict[str, int],
    wanted: int,
) -> None:  # fmt: skip
    tell(monkeypatch, {**OWN, "num_minibatches": wanted})
    config = chosen(G1, **overrides)
    assert config.batch_size % config.num_minibatches == 0
    assert 1 <= config.num_minibatches <= wanted


ISAAC = {
    name: entry.preset
    for name, entry in engine_environments("isaaclab").items()
    if entry.supported and entry.preset
}


@BOTH
@pytest.mark.parametrize("env_id", ISAAC)
def test_every_task_of_isaac_lab_has_valid_settings_on_a_gpu(
    on_gpu: None, monkeypatch: pytest.MonkeyPatch, chosen: Chosen, env_id: str
) -> None:
    tell(monkeypatch, ISAAC[env_id])
    config = chosen(env_id)
    assert (config.engine, config.num_envs) == ("isaaclab", 16_384)
    assert config.num_steps <= min(12, ISAAC[env_id]["num_steps"])
    assert config.num_minibatches == ISAAC[env_id]["num_minibatches"]


@pytest.mark.parametrize(
    ("env_id", "steps"), [("Humanoid-v5", 10**6), ("HumanoidStandup-v5", 500_000)]
)
def test_ppo_has_its_own_settings_where_sessions_use_sac(env_id: str, steps: int) -> None:
    assert quick_config(env_id).algorithm == "sac"
    config = quick_config(env_id, algorithm="ppo")
    assert (config.algorithm, config.total_timesteps, config.num_steps) == ("ppo", steps, 256)


@BOTH
@pytest.mark.parametrize("machine", ["on_gpu", "on_cpu"])
@pytest.mark.parametrize(
    ("field", "value"), [("num_envs", "many"), ("num_envs", 0), ("num_steps", None),
                         ("total_timesteps", "long"), ("total_timesteps", -1)],
)  # fmt: skip
def test_a_bad_value_for_an_engine_is_named(
    request: pytest.FixtureRequest, chosen: Chosen, machine: str, field: str, value: Any
) -> None:
    request.getfixturevalue(machine)
    with pytest.raises(ValidationError, match=field):
        chosen(G1, **{field: value})
