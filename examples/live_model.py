"""A session whose reward and judge a language model writes: `python examples/live_model.py MODEL`.

MODEL is `anthropic:claude-sonnet-5-5`, say; its key comes from the environment or `.env`. At most
two dollars are spent.
"""

import os
import sys

from p2p.session.request import loop_config
from p2p.session.run_session import create_session, run


def main(model: str) -> None:
    loop = loop_config(
        "InvertedPendulum-v5", model=model, budget_usd=2.0, max_iterations=2, judge_episodes=4
    )
    session = create_session("balance the pole in the middle of the rail", loop)
    result = run(session)
    print(f"{result.status}: {result.message}")
    print(f"{result.model_calls} calls, ${result.cost_usd or 0:.2f}")
    for path in sorted(session.llm_dir.glob("*.json")):
        print(f"  {path.stem}")
    print(f"reward: {os.path.relpath(session.iteration(1).reward_fn_path)}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
