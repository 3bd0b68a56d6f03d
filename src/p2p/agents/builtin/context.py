"""Leaves out the clauses of a prompt that say why, for whom or to whom, and ask for no motion.

What may change the motion is known by closed classes: a word of the lexicon, a limb, a number, a
modal verb, `you`. A clause that states something about the world around and has none of these
is no demand; everything else stays in the text, and is named as unchecked if nothing measures it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from p2p.agents.builtin.lexicon import (
    CLAUSES,
    LIMBS,
    MANNERS,
    NOUNS,
    SIDES,
    SIMILES,
    STOP_WORDS,
    entry_of,
    lemmas,
)

_BETWEEN = re.compile(
    r"((?:(?<!\d)[.,]|[.,](?!\d)|[!?;:()\n]|\s(?=and (?:i|we)\b)|\s[-\u2013\u2014]+\s)+)"
)
"""Clauses; a stop or a comma within a number is part of it."""
_NEED_IT = (["need", "this"], ["need", "that"], ["need", "it"])
_WORD = re.compile(r"[a-z]+(?:['-][a-z]+)*|\d+")


def leave_out_context(text: str, limbs: Collection[str] = ()) -> tuple[str, tuple[str, ...]]:
    """The text without what asks for nothing, and a line for each clause that was left out."""
    left_out: list[str] = []

    def drop(clause: str) -> str:
        if " ".join(clause.split()):
            left_out.append(f"“{' '.join(clause.split())}” asks for no motion")
        return " "

    kept = [
        drop(piece) if _is_statement(piece, limbs) else _drop_purposes(piece, limbs, drop)
        for piece in _BETWEEN.split(text)
    ]
    if not any(_WORD.search(piece) for piece in kept):
        return text, ()
    return "".join(kept), tuple(left_out)


def _is_statement(clause: str, limbs: Collection[str]) -> bool:
    """Return whether the words describe the surroundings or address somebody."""
    words = _WORD.findall(clause)
    if len(words) < 2:
        return False
    if words[0] in CLAUSES.greetings:
        return len(words) <= 3 and not _changes_task(words[1:], limbs)
    starts = CLAUSES.conjunctions
    first = next((n for n, word in enumerate(words) if word not in starts), len(words))
    states = " ".join(words[first : first + 1]) in CLAUSES.subjects
    if (
        " ".join(words[first : first + 3]) in CLAUSES.reasons
        or " ".join(words[first : first + 2]) in CLAUSES.reasons
    ):
        return True
    if words[first + 1 : first + 3] in _NEED_IT:
        first += 1
    return states and not _changes_task(words[first + 1 :], limbs)


def _drop_purposes(clause: str, limbs: Collection[str], drop: Callable[[str], str]) -> str:
    """Drop purposes such as `for our demo`, `so that everyone can see it`."""
    words = list(_WORD.finditer(clause))
    texts = [match[0] for match in words]
    spans: list[tuple[int, int]] = []
    place = 0
    while place < len(texts):
        size = _purpose(texts[place:], limbs)
        if size:
            end = words[place + size - 1].end()
            spans.append((words[place].start(), end))
        place += size or 1
    for first, last in reversed(spans):
        clause = clause[:first] + drop(clause[first:last]) + clause[last:]
    return clause


def _purpose(words: Sequence[str], limbs: Collection[str]) -> int:
    """Return how many words a purpose takes that begins here; 0: none does."""
    if words[0] == "for":
        return _skip_beneficiary(words, limbs)
    begins = next((size for size in (3, 2, 1) if " ".join(words[:size]) in CLAUSES.purposes), 0)
    size = begins and next(
        (n for n, word in enumerate(words) if n >= begins and word in CLAUSES.ends), len(words)
    )
    return 0 if _changes_task(words[begins:size], limbs) else size


def _skip_beneficiary(words: Sequence[str], limbs: Collection[str]) -> int:
    """`for the camera`: nouns that no table knows, up to the next word that one does."""
    size = 1
    while size < min(len(words), 7) and words[size] in CLAUSES.determiners:
        size += 1
    nouns = size
    while size < min(len(words), nouns + 3) and not (
        _changes_task([words[size]], limbs)
        or words[size] in STOP_WORDS
        or words[size] in CLAUSES.ends
        or words[size].endswith("ly")
    ):
        size += 1
    known = size == nouns and size < len(words) and words[size] in CLAUSES.beneficiaries
    return size + known if size > nouns or known else 0


def _changes_task(words: Sequence[str], limbs: Collection[str]) -> bool:
    """Return whether one of these words may change the task."""
    for place, word in enumerate(words):
        entry = entry_of(word)
        named = any(word in each for each in (limbs, LIMBS, SIDES, SIMILES, NOUNS))
        if named or word[0].isdigit() or word in CLAUSES.demands or word in MANNERS:
            return True
        verb = any(form in CLAUSES.plain_verbs for form in lemmas(word))
        if entry is not None and entry.slot != "filler" and not verb:
            return True
        following = " ".join(words[place : place + 2])
        pair = entry_of(following) if following != word else None
        if pair is not None and pair.slot != "filler":
            return True
    return False
