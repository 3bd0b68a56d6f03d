"""The libraries that training needs work inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safetensors.numpy import load

from p2p.sandbox import LIBRARIES_BYTES, read_arrays, read_result

if TYPE_CHECKING:
    from sandbox_runner import Runner


def test_batched_simulation_with_two_threads_and_a_jitted_update_work(sandbox: Runner) -> None:
    ended = sandbox(
        """
        import mujoco, mujoco.batch, numpy as np
        ball = "<body pos='0 0 1'><freejoint/><geom size='.1'/></body>"
        xml = f"<mujoco><worldbody>{ball}</worldbody></mujoco>"
        batch = mujoco.batch.Batch(mujoco.MjModel.from_xml_string(xml), 8, 2)
        before = np.array(batch.qpos)
        for _ in range(50): batch.step()
        fell = before[:, 2] - np.array(batch.qpos)[:, 2]
        import jax, jax.numpy as jnp
        step = jax.jit(jax.grad(lambda w: jnp.tanh(w @ w).sum()))
        np.savez("out.npz", fell=fell, gradient=np.asarray(step(jnp.ones((32, 32)))))
        """,
        wall_seconds=120,
        address_bytes=LIBRARIES_BYTES,
    )
    assert ended.exit.ok, ended.exit
    arrays = read_arrays(ended.folder, "out.npz")
    assert (arrays["fell"] > 0.01).all()
    assert arrays["gradient"].shape == (32, 32)


def test_a_reference_trainer_on_a_gymnasium_environment_works(sandbox: Runner) -> None:
    ended = sandbox(
        """
        import gymnasium, torch
        from safetensors.torch import save_file
        from stable_baselines3 import PPO
        small = dict(n_steps=16, batch_size=16, n_epochs=1, device="cpu")
        model = PPO("MlpPolicy", "HalfCheetah-v5", **small)
        model.learn(16)
        save_file(model.policy.state_dict(), "policy.safetensors")
        """,
        wall_seconds=120,
        address_bytes=LIBRARIES_BYTES,
    )
    assert ended.exit.ok, ended.exit
    policy = load(read_result(ended.folder, "policy.safetensors", 1 << 20))
    assert policy["log_std"].shape == (6,)
