"""How often words of a prompt stay unchecked: 60 paraphrases, read by the built-in author.

python benchmarks/unverified_words.py [--part first|second] [--write]

The paraphrases were written before the words of the lexicon were revised, first with the first 30
in view, then with all: the figures say what is left of them, not how others are read. Nothing is
trained: a prompt with a word that no
criterion measures cannot end `passed`, whatever a policy does.
"""

from __future__ import annotations

import argparse
import csv
from typing import NamedTuple

from common import RESULTS, described, machine, table, write

from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.requests import IntentRequest

PROMPTS = RESULTS.parent / "paraphrases_60.csv"
HALF = 30


class Reading(NamedTuple):
    env_id: str
    prompt: str
    criteria: int
    unchecked: tuple[str, ...]
    refusal: str


def read_prompts() -> list[Reading]:
    readings = []
    with PROMPTS.open(newline="") as file:
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
    parser.add_argument("--part", choices=("first", "second", "all"), default="all")
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    args = parser.parse_args()
    before = machine()
    readings = read_prompts()
    parts = {"first": readings[:HALF], "second": readings[HALF:], "all": readings}
    chosen = parts[args.part]
    titles = {"first": "first half", "second": "second half", "all": "all"}
    counts = [
        count_outcomes(titles[key], parts[key])
        for key in titles
        if chosen == readings or key == args.part
    ]
    rows = [
        [reading.env_id, reading.prompt, str(reading.criteria), ", ".join(reading.unchecked) or "-",
         reading.refusal.partition(". ")[0] or "-"]
        for reading in chosen
    ]  # fmt: skip
    text = "\n".join(
        [
            "# Words that stay unchecked",
            "",
            (
                "60 paraphrases of motions, written before the words were revised, as the built-in "
                "author reads them. A prompt with a word that no criterion measures ends "
                "`unverified` at best. Nothing is trained here. The words were revised with all of "
                "them in view: other prompts may fare worse."
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
