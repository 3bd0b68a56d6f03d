"""How often words of a prompt stay unchecked, as the built-in author reads it.

python benchmarks/unverified_words.py [--write]

Sets of paraphrases. Nothing is trained: a prompt with a word that no criterion measures cannot
end `passed`, whatever a policy does. The readings of the third set are counted but not listed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import RESULTS, described, machine, table, write

from p2p.agents.builtin import morphology
from p2p.agents.builtin.criteria import write_criteria
from p2p.agents.requests import IntentRequest
from p2p.training.engines.facts import facts_folder


class PromptSet(NamedTuple):
    name: str
    """In paraphrases.csv."""
    about: str
    first: str
    """Unverified and refused when it was first read, before any word was changed for it."""
    listed: bool = True


SETS = (
    PromptSet("first", "worked on from the start", "-"),
    PromptSet("second", "worked on later", "27 and 3 of 60"),
    PromptSet("third", "four misreadings fixed", "37 and 2 of 60", False),
    PromptSet("fourth", "worked on after it was read", "9 and 2 of 20"),
    PromptSet("fifth", "by somebody else, worked on", "25 and 4 of 60"),
    PromptSet("sixth", "long ones by somebody else", "47 and 12 of 60"),
    PromptSet("seventh", "motions of all kinds, hardly worked on", "38 and 6 of 60"),
    PromptSet("eighth", "of the shipped prompts", "21 and 1 of 60"),
    PromptSet("ninth", "likewise", "32 and 2 of 60"),
    PromptSet("tenth", "likewise, read after those", "11 and 3 of 60"),
    PromptSet("eleventh", "in many voices", "31 and 6 of 60"),
    PromptSet("twelfth, colourful", "hardly worked on", "43 and 5 of 60"),
    PromptSet("twelfth, plain", "as engineers type", "11 and 1 of 60"),
    PromptSet("thirteenth", "plain, read after those", "2 and 1 of 60"),
    PromptSet("fourteenth", "for Unitree's robots, eleven misreadings fixed", "6 and 3 of 50"),
)
PROMPTS = RESULTS.parent / "paraphrases.csv"
G1 = Path(__file__).parents[1] / "tests" / "agents" / "builtin" / "unitree_g1"
STANDS_FOR = {"Mjlab-Velocity-Flat-Unitree-Go1": "Ant-v5"}
"""Another robot with four legs, where no facts of the engine's are at hand."""


class Reading(NamedTuple):
    env_id: str
    prompt: str
    criteria: int
    unchecked: tuple[str, ...]
    refusal: str


def prepare_g1(engines: Path) -> None:
    """Give the Unitree G1 the facts and the pose that its tests recorded."""
    os.environ["P2P_ENGINES_DIR"] = str(engines)
    folder = facts_folder("mjlab", "Mjlab-Velocity-Flat-Unitree-G1")
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text((G1 / "spec.json").read_text())
    (folder / "preset.json").write_text("{}")
    start = json.loads((G1 / "poses.json").read_text())["stands"]
    pose = np.array(start["body_position"]), np.array(start["xquat"])
    morphology._first_pose = lambda _: pose  # noqa: SLF001


def read_prompts(name: str) -> list[Reading]:
    readings = []
    with PROMPTS.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["set"] != name:
                continue
            env_id = STANDS_FOR.get(row["env_id"], row["env_id"])
            proposal = write_criteria(IntentRequest(prompt=row["prompt"], env_id=env_id))
            unchecked = () if proposal.refusal else proposal.unused_words
            readings.append(
                Reading(row["env_id"], row["prompt"], len(proposal.criteria), unchecked,
                        proposal.refusal)
            )  # fmt: skip
    return readings


def count_outcomes(name: str, first: str, readings: list[Reading]) -> list[str]:
    total = len(readings)
    unverified = sum(bool(reading.unchecked) for reading in readings)
    refused = sum(bool(reading.refusal) for reading in readings)
    counts = (unverified, refused, total - unverified - refused)
    return [name, str(total), first, *(f"{count} ({count / total:.0%})" for count in counts)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    args = parser.parse_args()
    before = machine()
    with tempfile.TemporaryDirectory() as engines:
        prepare_g1(Path(engines))
        read = [(each, read_prompts(each.name)) for each in SETS]
    counts = [
        count_outcomes(f"{each.name}: {each.about}", each.first, readings)
        for each, readings in read
    ]
    listed = [reading for each, readings in read if each.listed for reading in readings]
    rows = [
        [reading.env_id, reading.prompt, ", ".join(reading.unchecked) or "-",
         reading.refusal.partition(". ")[0] or "-"]
        for reading in listed if reading.unchecked or reading.refusal
    ]  # fmt: skip
    text = "\n".join(
        [
            "# Words that stay unchecked",
            "",
            (
                "Paraphrases of motions, as the built-in author reads them. A prompt with a word "
                "that no criterion measures ends `unverified` at best. Nothing is trained here. "
                "Each set was written before the words were looked at for it; the column *at first"
                " sight* is how it was read then, and is the honest figure for new prompts. The "
                "third and the fourth set were written by the author of the words, the later ones "
                "by somebody who had not seen them. The eighth to the eleventh say the shipped "
                "prompts in other words, the eleventh in those of as many different people as it "
                "has prompts. Two sets of 60 made the twelfth: somebody else, who saw no result, "
                "told plain prompts (direct, in common or technical words) from colourful ones "
                "(slang, likenesses, stories). The thirteenth is plain throughout, and was written "
                "after the plain half of the twelfth had been worked on. Of the 16 of the seventh "
                "that count as checked in full, two lose a number (a turn every six seconds, "
                "within 1 cm). The third was counted three times; four of its prompts had been "
                "read as something else in silence, and were corrected. Whoever wrote the "
                "fourteenth read what each prompt became: 15 of 50 were something else than was "
                "asked, in silence. Eleven are corrected; a big circle, a jump as high as "
                "possible, long slow steps and a run without flight are not. Prompts for the "
                "Unitree Go1 are read with the facts of Ant-v5."
            ),
            "",
            *described(before, machine()),
            "",
            table(
                ["paraphrases", "prompts", "unverified and refused at first sight",
                 "unverified now", "refused now", "checked in full now"], counts,
            ),
            "",
            "Those of the listed sets that are not checked in full:",
            "",
            table(["environment", "prompt", "unchecked words", "refusal"], rows),
            "",
        ]
    )  # fmt: skip
    print(text)
    if args.write:
        write(
            "unverified_words",
            text,
            {"machine": before, "readings": [r._asdict() for r in listed]},
        )


if __name__ == "__main__":
    main()
