"""Settings for iterating on rewards."""

from __future__ import annotations

import pytest

from p2p.config import TUNABLE_BOUNDS
from p2p.training.env_spec import list_env_ids
from p2p.training.hp_presets import QUICK, quick_config


@pytest.mark.parametrize("env_id", [*list_env_ids(), "Unheard-v0", "NoVersion"])
def test_every_environment_has_quick_settings_within_the_bounds(env_id: str) -> None:
    config = quick_config(env_id)
    assert config.env_id == env_id
    for name, (low, high) in TUNABLE_BOUNDS.items():
        value = getattr(config, name)
        assert value is None or low <= value <= high, name


def test_gymnasiums_environments_are_all_measured() -> None:
    assert {env_id.rpartition("-v")[0] for env_id in list_env_ids()} == set(QUICK)


@pytest.mark.parametrize(
    "overrides",
    [{"num_envs": 3}, {"num_steps": 100}, {"num_envs": 7, "num_steps": 33}, {"num_envs": 1},
     {"num_envs": 2, "num_steps": 16}, {"num_minibatches": 4}],
)  # fmt: skip
def test_what_is_given_counts_and_the_minibatches_fit_it(overrides: dict[str, int]) -> None:
    config = quick_config("Hopper-v5", **overrides)
    assert overrides.items() <= config.model_dump().items()
    assert config.batch_size % config.num_minibatches == 0
