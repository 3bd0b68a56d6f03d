"""How often words of a prompt stay unchecked, as the built-in author reads it.

python benchmarks/unverified_words.py [--write]

Two sets of 60 paraphrases: one that was in view while the words were revised, and one whose authors
had not seen the words, and whose readings are counted but not listed, so that nobody works on them.
Nothing is trained: a prompt with a word that no criterion measures cannot end `passed`, whatever a
policy does.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import NamedTuple

from common import RESULTS, described, machine, table, write

from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.requests import IntentRequest

WORKED_ON = RESULTS.parent / "paraphrases_60.csv"
HELD_OUT = RESULTS.parent / "paraphrases_held_out.csv"


class Reading(NamedTuple):
    env_id: str
    prompt: str
    criteria: int
    unchecked: tuple[str, ...]
    refusal: str


def read_prompts(path: Path) -> list[Reading]:
    readings = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            proposal = write_criteria(IntentRequest(prompt=row["prompt"], env_id=row["env_id"]))
            unchecked = () if proposal.refusal else proposal.unused_words
            readings.append(
                Reading(row["env_id"], row["prompt"], len(proposal.criteria), unchecked,
                        proposal.refusal)
            )  # fmt: skip
    return readings


def count_outcomes(name: str, readings: list[Reading]) -> list[str]:
    total = len(readings)
    unverified = sum(bool(reading.unchecked) for reading in readings)
    refused = sum(bool(reading.refusal) for reading in readings)
    counts = (unverified, refused, total - unverified - refused)
    return [name, str(total), *(f"{count} ({count / total:.0%})" for count in counts)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    args = parser.parse_args()
    before = machine()
    readings, held_out = read_prompts(WORKED_ON), read_prompts(HELD_OUT)
    counts = [count_outcomes("worked on", readings), count_outcomes("held out", held_out)]
    rows = [
        [reading.env_id, reading.prompt, str(reading.criteria), ", ".join(reading.unchecked) or "-",
         reading.refusal.partition(". ")[0] or "-"]
        for reading in readings
    ]  # fmt: skip
    text = "\n".join(
        [
            "# Words that stay unchecked",
            "",
            (
                "Two sets of 60 paraphrases of motions, as the built-in author reads them. A prompt"
                " with a word that no criterion measures ends `unverified` at best. Nothing is "
                "trained here. The words were revised with the first set in view; who wrote the "
                "second had not seen them, and its readings are not listed."
            ),
            "",
            *described(before, machine()),
            "",
            table(["paraphrases", "prompts", "unverified", "refused", "checked in full"], counts),
            "",
            table(["environment", "prompt", "criteria", "unchecked words", "refusal"], rows),
            "",
        ]
    )
    print(text)
    if args.write:
        write(
            "unverified_words",
            text,
            {"machine": before, "readings": [r._asdict() for r in readings]},
        )


if __name__ == "__main__":
    main()
