import math

from p2p.contracts import CheckpointInfo, RunConfigEntry, SeedResult, StatusLiteral, TrainSummary
from p2p.training.trainer import aggregate, final_return

CONFIGS = [RunConfigEntry(config_id="a"), RunConfigEntry(config_id="b", label="faster")]


def result(
    config: str, seed: int, value: float | None, status: StatusLiteral = "completed"
) -> tuple[str, SeedResult]:
    run_id = f"{config}_seed_{seed}"
    return run_id, SeedResult(run_id=run_id, seed=seed, status=status, final_return=value)


def test_mean_and_spread_are_over_the_seeds_of_a_configuration() -> None:
    results = dict([result("a", 1, 1.0), result("a", 2, 3.0), result("b", 1, 2), result("b", 2, 4)])
    made = aggregate(CONFIGS, [1, 2], results)
    assert [(row.mean_return, row.std_return) for row in made.configs] == [(2.0, 1.0), (3.0, 1.0)]
    assert (made.best_config_id, made.best_run_id) == ("b", "b_seed_2")


def test_a_failed_run_never_beats_a_negative_return() -> None:
    results = dict([result("a", 1, None, "failed"), result("b", 1, -500.0)])
    made = aggregate(CONFIGS, [1], results)
    assert (made.best_config_id, made.best_run_id) == ("b", "b_seed_1")
    assert made.configs[0].mean_return is None


def test_a_return_that_is_not_finite_counts_for_nothing() -> None:
    results = dict([result("a", 1, math.inf), result("a", 2, -7.0), result("b", 1, math.nan),
                    result("b", 2, -8.0)])  # fmt: skip
    made = aggregate(CONFIGS, [1, 2], results)
    assert [row.mean_return for row in made.configs] == [-7.0, -8.0]
    assert made.best_run_id == "a_seed_2"


def test_when_everything_failed_nothing_is_best() -> None:
    results = dict([result("a", 1, None, "failed"), result("b", 1, None, "error")])
    made = aggregate(CONFIGS, [1], results)
    assert (made.best_config_id, made.best_run_id) == (None, None)


def test_a_run_is_worth_what_its_selected_checkpoint_returned() -> None:
    summary = TrainSummary(
        env_id="HalfCheetah-v5", seed=1, backend="fast", total_timesteps=20, training_time_s=1,
        total_episodes=3, final_episodic_return=9.0, reward_calls="batch",
        checkpoints=(CheckpointInfo(step=10, mean_return=5, std_return=0),
                     CheckpointInfo(step=20, mean_return=4, std_return=0)),
        selected_step=10,
    )  # fmt: skip
    assert final_return(summary) == 5.0
    assert final_return(summary.model_copy(update={"selected_step": None})) == 9.0
