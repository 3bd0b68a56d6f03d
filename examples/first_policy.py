"""From a prompt to a policy, in Python: `python examples/first_policy.py [CRITERIA]`.

It needs no key. CRITERIA is a file such as examples/criteria/balance.toml; without it, the criteria
are derived from the prompt. examples/first_policy.ipynb is a notebook of it.
"""

import os
import sys

import p2p


def main() -> None:
    # Options of `p2p run`, fields of LoopConfig and of TrainConfig alike.
    session = p2p.run(
        "balance the pole", env="InvertedPendulum-v5", model="builtin", iterations=2,
        criteria=sys.argv[1] if len(sys.argv) > 1 else None, judge_episodes=4, num_evals=2,
    )  # fmt: skip
    print(session.status)
    for criterion in session.criteria:
        print(f"  {criterion.id}: {criterion.score} (measured {criterion.measured or 'nothing'})")
    print(f"policy: {os.path.relpath(session.policy.path)}")
    print(f"report: {os.path.relpath(session.path / 'report.md')}")


if __name__ == "__main__":
    main()
