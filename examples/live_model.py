"""A session whose reward and judge a language model writes: `python examples/live_model.py MODEL`.

MODEL is `anthropic:claude-sonnet-5-5`, say; its key comes from the environment or `.env`. At most
two dollars are spent.
"""

import os
import sys

import p2p


def main(model: str) -> None:
    session = p2p.run(
        "balance the pole in the middle of the rail", env="InvertedPendulum-v5",
        model=model, budget_usd=2.0, iterations=2, judge_episodes=4,
    )  # fmt: skip
    print(session.status)
    result = session.view.result
    if result is not None:
        print(f"{result.model_calls} calls, ${result.cost_usd:.2f}")
    for path in sorted(session.record.llm_dir.glob("*.json")):
        print(f"  {path.stem}")
    print(f"reward: {os.path.relpath(session.path / 'iter_1' / 'reward_fn.py')}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
