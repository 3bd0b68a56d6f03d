"""A configuration is checked when it is made, and a revision cannot break it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from p2p.config import ALGORITHM_FIELDS, TUNABLE, TUNABLE_BOUNDS, TrainConfig


def test_the_example_of_the_architecture_text_is_a_configuration():
    config = TrainConfig.from_json(
        '{"total_timesteps": 1000000, "learning_rate": 0.0003, "gamma": 0.99, "num_steps": 2048,'
        ' "num_envs": 1, "seed": 1, "env_id": "HalfCheetah-v5"}'
    )
    assert (config.batch_size, config.minibatch_size, config.num_iterations) == (2048, 64, 489)
    written = TrainConfig.from_json('{"total_timesteps": 1e6, "net_arch": 128}')
    assert (written.total_timesteps, written.net_arch) == (1_000_000, (128, 128))


@pytest.mark.parametrize(
    "bad",
    [
        {"learning_rat": 0.1},
        {"num_envs": True}, {"seed": False}, {"learning_rate": float("nan")},
        {"net_arch": True}, {"net_arch": [64, 0]}, {"net_arch": [True]},
        {"max_episode_steps": True}, {"env_id": True},
        {"iteration_id": "../../x"}, {"iteration_id": ".."}, {"iteration_id": "iter_1\n"},
    ],
)  # fmt: skip
def test_a_value_out_of_bounds_or_of_the_wrong_kind_is_an_error(bad):
    with pytest.raises(ValidationError, match=next(iter(bad))):
        TrainConfig(**bad)


def test_minibatches_divide_the_batch():
    with pytest.raises(ValidationError, match=r"must divide num_envs \* num_steps"):
        TrainConfig(num_envs=3, num_steps=100, num_minibatches=7)
    assert TrainConfig(num_envs=3, num_steps=100, num_minibatches=5).minibatch_size == 60


def test_a_minibatch_of_one_step_cannot_be_normalised():
    with pytest.raises(ValidationError, match="one step in a minibatch"):
        TrainConfig(num_envs=1, num_steps=32, num_minibatches=32)
    assert TrainConfig(num_envs=1, num_steps=32, num_minibatches=32, norm_adv=False)


@pytest.mark.parametrize("name", TUNABLE_BOUNDS)
def test_both_ends_of_every_bound_are_values_of_the_field(name):
    for end in TUNABLE_BOUNDS[name]:
        algorithm = "sac" if name in ALGORITHM_FIELDS["sac"] else "ppo"
        changed, notes = TrainConfig(algorithm=algorithm).apply_updates({name: end})
        assert getattr(changed, name) == end
        assert all("num_minibatches" in note for note in notes)


def test_a_revision_changes_what_it_may():
    changed, notes = TrainConfig().apply_updates(
        {"learning_rate": 1e-4, "net_arch": [128, 64], "normalize_reward": False, "target_kl": 0.02}
    )
    assert notes == []
    assert (changed.learning_rate, changed.net_arch) == (1e-4, (128, 64))
    assert (changed.normalize_reward, changed.target_kl) == (False, 0.02)


@pytest.mark.parametrize(
    ("name", "value", "result"),
    [
        ("learning_rate", 1, 3e-3), ("learning_rate", -5, 1e-6), ("learning_rate", "1e9", 3e-3),
        ("learning_rate", float("inf"), 3e-3), ("num_steps", 10**9, 8192), ("num_steps", 1, 8),
        ("gamma", 0, 0.8), ("total_timesteps", 1e12, 1_000_000_000),
    ],
)  # fmt: skip
def test_a_value_beyond_the_bounds_is_clamped_and_noted(name, value, result):
    changed, notes = TrainConfig().apply_updates({name: value})
    assert getattr(changed, name) == result
    assert "clamped" in notes[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", True), ("learning_rate", float("nan")), ("learning_rate", "fast"),
        ("learning_rate", None), ("learning_rate", [1e-4]), ("num_steps", 512.5),
        ("num_steps", True), ("num_minibatches", True), ("num_minibatches", 2.5),
        ("num_minibatches", None), ("normalize_obs", "perhaps"), ("net_arch", [0]),
        ("net_arch", "wide"), ("net_arch", True), ("update_epochs", {}),
    ],
)  # fmt: skip
def test_a_value_without_sense_is_refused_and_noted(name, value):
    config = TrainConfig()
    changed, notes = config.apply_updates({name: value})
    assert changed == config
    assert len(notes) == 1
    assert notes[0].startswith(f"{name}=")
    assert "refused" in notes[0]


@pytest.mark.parametrize("name", ["env_id", "seed", "backend", "num_envs", "no_such_field"])
def test_what_cannot_be_tuned_is_left_and_noted(name):
    changed, notes = TrainConfig().apply_updates({name: 3})
    assert changed == TrainConfig()
    assert "cannot be tuned" in notes[0]


def test_hyperparameters_of_other_algorithm_are_refused():
    sac = TrainConfig(algorithm="sac", num_envs=3, num_steps=7)  # no minibatches to divide these
    with pytest.raises(ValidationError, match="clip_coef, vf_coef: no effect with algorithm 'sac'"):
        sac.with_updates(vf_coef=1.0, clip_coef=0.1)
    with pytest.raises(ValidationError, match="updates_per_step: no effect with algorithm 'ppo'"):
        TrainConfig(updates_per_step=1.0)
    changed, notes = sac.apply_updates({"clip_coef": 0.1, "gamma": 0.98, "num_steps": 31})
    assert (changed.gamma, changed.num_steps, changed.clip_coef) == (0.98, 31, sac.clip_coef)
    assert notes[0].startswith("clip_coef has no effect with algorithm 'sac'; there are learning_r")
    assert sac.tuning_problems({"ent_coef": 0.1})[0].startswith("ent_coef has no effect")
    assert TrainConfig(clip_coef=0.1).with_updates(algorithm="sac").clip_coef == 0.2
    assert TrainConfig.from_json(sac.to_json()) == sac


def test_unchanged_value_outside_bounds_is_kept():
    config = TrainConfig(gamma=0.5, ent_coef=0.5, learning_rate=0.1)
    changed, notes = config.apply_updates({"gamma": 0.5, "ent_coef": 0.5, "learning_rate": 0.1})
    assert (changed, notes) == (config, [])


def test_what_may_be_none_can_be_set_back_to_it():
    changed, notes = TrainConfig(target_kl=0.02, max_episode_steps=50).apply_updates(
        {"target_kl": None, "max_episode_steps": None}
    )
    assert (changed.target_kl, changed.max_episode_steps, notes) == (None, None, [])


@pytest.mark.parametrize(("num_steps", "minibatches"), [(50, 25), (1021, 8), (256, 32), (17, 17)])
def test_minibatches_give_way_to_a_new_batch(num_steps, minibatches):
    changed, notes = TrainConfig().apply_updates({"num_steps": num_steps})
    assert (changed.num_steps, changed.num_minibatches) == (num_steps, minibatches)
    assert len(notes) == (minibatches != 32)


_ANY = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4),
    st.lists(st.integers(-2, 600), max_size=3),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from([*TUNABLE, "seed", "x"]), _ANY))
def test_no_revision_can_break_a_configuration(updates: dict[str, Any]):
    changed, _ = TrainConfig().apply_updates(updates)
    assert TrainConfig.from_json(changed.to_json()) == changed
    for name, (low, high) in TUNABLE_BOUNDS.items():
        value = getattr(changed, name)
        assert value is None or low <= value <= high
