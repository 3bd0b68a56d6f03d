"""An environment of your own, from a prompt: `python examples/own_environment.py`.

examples/environments/long_pole.py registers it with Gymnasium. Its folder is named in P2P_ENV_PATH:
from there the sandbox may import and read, and from nowhere else.
"""

import os
from pathlib import Path

os.environ["P2P_ENV_PATH"] = str(Path(__file__).parent / "environments")

from p2p.session.request import loop_config
from p2p.session.run_session import create_session, run
from p2p.training.env_spec import get_env_spec
from p2p.training.vec_env import is_fast

ENV = "long_pole:LongPole-v0"


def main() -> None:
    spec = get_env_spec(ENV)
    print(f"{spec.env_id}: {len(spec.observation)} observations, {len(spec.actions)} actions,",
          "fast backend" if is_fast(ENV) else "Stable-Baselines3 backend")  # fmt: skip

    loop = loop_config(
        ENV, model="builtin", max_iterations=2, judge_episodes=4, num_evals=2,
        total_timesteps=60_000,
    )  # fmt: skip
    session = create_session("balance the pole", loop)
    result = run(session)
    print(f"{result.status}: {result.message}")
    if result.policy:
        print(f"policy: {session.path / result.policy}")


if __name__ == "__main__":
    main()
