"""The parts as Ray actors, put together as in the quick start."""

from __future__ import annotations

import pytest
import ray

import unstable
import unstable.reward_transformations as retra
from unstable.core import Trajectory


@pytest.mark.usefixtures("cluster")
@pytest.mark.slow
def test_the_parts_work_together_as_actors(tmp_path):
    tracker = unstable.Tracker.options(name="Tracker").remote(
        run_name="demo", run_dir=str(tmp_path / "run")
    )
    step_buffer = unstable.StepBuffer.options(name="StepBuffer").remote(
        max_buffer_size=768,
        tracker=tracker,
        final_reward_transformation=retra.ComposeFinalRewardTransforms(
            [retra.RoleAdvantageByEnvFormatter()]
        ),
        step_reward_transformation=retra.ComposeStepRewardTransforms(
            [retra.RewardForFormat(1.5), retra.PenaltyForInvalidMove(1.0, -1.0)]
        ),
        sampling_reward_transformation=retra.ComposeSamplingRewardTransforms(
            [retra.NormalizeRewardsByEnv(True)]
        ),
    )
    model_pool = unstable.ModelPool.options(name="ModelPool").remote(
        sample_mode="mirror", max_active_lora=3, tracker=tracker
    )
    ray.get(model_pool.add_checkpoint.remote(path=None, iteration=-1))
    uid = ray.get(model_pool.current_uid.remote())
    game = Trajectory(
        pid=[0], obs=["board"], actions=["\\boxed{4}"], final_rewards={0: 1.0, 1: -1.0},
        num_turns=1, format_feedbacks=[{"correct_answer_format": True, "invalid_move": False}],
    )  # fmt: skip
    for _ in range(4):
        step_buffer.add_trajectory.remote(game, 0, "SimpleTak-v0-train")
        tracker.add_trajectory.remote(game, 0, "SimpleTak-v0-train")
        model_pool.push_game_outcome.remote(uid, uid, 1.0, ["[4]"], "SimpleTak-v0-train")
    assert ray.get(step_buffer.size.remote()) == 4
    assert ray.get(step_buffer.continue_collection.remote())
    batch = ray.get(step_buffer.get_batch.remote(4))
    assert {step.act for step in batch} == {"\\boxed{4}"}
    assert sum(step.reward for step in batch) == pytest.approx(0.0, abs=1e-6)
    ray.get(step_buffer.flush.remote())
    assert (tmp_path / "run" / "training_data" / "train_data_step_0.csv").exists()
    ray.get(model_pool.snapshot.remote(-1))
    info = ray.get(ray.get_actor("Tracker").get_interface_info.remote())
    assert info["match_counts"] == {(uid, uid): 4}
    assert info["counts"] == {"collection-SimpleTak-v0-train": 4}


def test_a_plain_class_is_behind_each_actor():
    assert unstable.Tracker is unstable.Tracker
    assert unstable.Tracker.__ray_metadata__.class_name == "Tracker"
