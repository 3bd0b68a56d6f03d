"""From a sentence to a policy, in Python, with criteria of one's own: `python examples/session.py`.

It needs no key. Keys of model providers would come from the environment or `.env`.
"""

from pathlib import Path

from p2p.agents.criteria_text import parse_criteria
from p2p.session.request import loop_config
from p2p.session.run_session import create_session, run

CRITERIA = Path(__file__).parent / "criteria" / "balance.toml"


def main() -> None:
    # Fields of LoopConfig and of TrainConfig alike; what is not said has its default.
    loop = loop_config(
        "InvertedPendulum-v5", model="builtin", max_iterations=2, judge_episodes=4, num_evals=2
    )
    session = create_session(
        "balance the pole", loop, criteria=parse_criteria(CRITERIA.read_text())
    )
    print(f"session: {session.path}")

    # Ends in a status, also when it is cancelled; `run(session, resume=True)` then goes on.
    result = run(session)

    print(f"{result.status}: {result.message}")
    judgment = session.iteration(result.best_iteration or 1).read_judgment()
    for criterion in judgment.criteria if judgment else ():
        print(f"  {criterion.id}: {criterion.score} (measured {criterion.value})")
    if result.policy:
        print(f"policy: {session.path / result.policy}")
        print(f"report: {session.report_path}")


if __name__ == "__main__":
    main()
