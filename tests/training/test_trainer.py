import math

import pytest

from p2p.contracts import CheckpointInfo, RunConfigEntry, SeedResult, TrainSummary
from p2p.training.trainer import aggregate, final_return

CONFIGS = [RunConfigEntry(config_id="a"), RunConfigEntry(config_id="b", label="faster")]


@pytest.mark.parametrize(
    ("returns", "means", "best"),
    [
        ({"a": (1.0, 3.0), "b": (2.0, 4.0)}, [2.0, 3.0], ("b", "b_seed_2")),
        ({"a": (None,), "b": (-500.0,)}, [None, -500.0], ("b", "b_seed_1")),
        ({"a": (math.inf, -7.0), "b": (math.nan, -8.0)}, [-7.0, -8.0], ("a", "a_seed_2")),
        ({"a": (None,), "b": (None,)}, [None, None], (None, None)),
    ],
)
def test_the_best_mean_wins_and_runs_without_a_finite_return_count_for_nothing(
    returns, means, best
):
    results = {}
    for config, values in returns.items():
        for seed, value in enumerate(values, 1):
            run_id, status = f"{config}_seed_{seed}", "failed" if value is None else "completed"
            results[run_id] = SeedResult(
                run_id=run_id, seed=seed, status=status, final_return=value
            )
    aggregation = aggregate(CONFIGS, range(1, len(returns["a"]) + 1), results)
    assert [row.mean_return for row in aggregation.configs] == means
    assert (aggregation.best_config_id, aggregation.best_run_id) == best


def test_a_run_is_worth_what_its_selected_checkpoint_returned():
    summary = TrainSummary(
        env_id="HalfCheetah-v5", seed=1, backend="fast", total_timesteps=20, training_time_s=1,
        total_episodes=3, final_episodic_return=9.0, reward_calls="batch",
        checkpoints=(CheckpointInfo(step=10, mean_return=5, std_return=0),
                     CheckpointInfo(step=20, mean_return=4, std_return=0)),
        selected_step=10,
    )  # fmt: skip
    assert final_return(summary) == 5.0
    assert final_return(summary.model_copy(update={"selected_step": None})) == 9.0
