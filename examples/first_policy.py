"""From a prompt to a policy, in Python: `python examples/first_policy.py [CRITERIA]`.

It needs no key. CRITERIA is a file such as examples/criteria/balance.toml; without it, the criteria
are derived from the prompt.
"""

import os
import sys
from pathlib import Path

from p2p.agents.intent_elicitor import parse_criteria
from p2p.session.request import loop_config
from p2p.session.run_session import create_session, run


def main() -> None:
    criteria = parse_criteria(Path(sys.argv[1]).read_text()) if len(sys.argv) > 1 else None
    # Fields of LoopConfig and of TrainConfig alike; what is not given has its default.
    loop = loop_config(
        "InvertedPendulum-v5", model="builtin", max_iterations=2, judge_episodes=4, num_evals=2
    )
    session = create_session("balance the pole", loop, criteria=criteria)
    print(f"session: {os.path.relpath(session.path)}")

    # Ends in a status, also when it is cancelled; `run(session, resume=True)` then continues.
    result = run(session)

    print(f"{result.status}: {result.message}")
    judgment = session.iteration(result.best_iteration or 1).read_judgment()
    for criterion in judgment.criteria if judgment else ():
        measured = "nothing" if criterion.value is None else f"{criterion.value:.3g}"
        print(f"  {criterion.id}: {criterion.score} (measured {measured})")
    if result.policy:
        print(f"policy: {os.path.relpath(session.path / result.policy)}")
        print(f"report: {os.path.relpath(session.report_path)}")


if __name__ == "__main__":
    main()
