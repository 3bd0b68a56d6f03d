"""Corrects slips of the finger: one letter too many, too few, the one beside it, or two swapped."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cache
from importlib.resources import files

from p2p.agents.builtin.lexicon import MISSPELT, WORDS, lemmas

_SHORTEST = 5
"""Letters; in shorter words a slip makes too many others."""
_KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@cache
def real_words() -> frozenset[str]:
    """Words that are one letter away from a known one, and are not meant to be it."""
    text = (files("p2p.agents.builtin") / "words" / "real_words.txt").read_text("utf-8")
    return frozenset(word for line in text.splitlines() if line[:1] != "#" for word in line.split())


def correct_spelling(text: str, names: Collection[str] = ()) -> tuple[str, tuple[str, ...]]:
    """Correct a text's misspellings, and return the corrections too."""
    corrections: list[str] = []

    def correct(match: re.Match[str]) -> str:
        word = match[0]
        meant = MISSPELT.get(word) or _correct_word(word, frozenset(names))
        if meant != word:
            corrections.append(f"“{word}” is read as “{meant}”")
        return meant

    return re.sub(r"[a-z]+(?:['-][a-z]+)*", correct, text), tuple(dict.fromkeys(corrections))


@cache
def _correct_word(word: str, names: frozenset[str]) -> str:
    """Return the one known word that this may be a misspelling of; else the word itself."""
    if len(word) < _SHORTEST or not word.isalpha() or _stem(word, WORDS | names | real_words()):
        return word
    for slips in (_list_slips(word), _swap_keys(word)):
        long = (each for each in slips if len(each) >= _SHORTEST)
        stems = {each: _stem(each, WORDS) for each in long if each in WORDS or each[-2:] != "er"}
        meant = sorted(
            (each for each, stem in stems.items() if stem), key=lambda each: (len(each), each)
        )
        if meant:
            return meant[0] if len({stems[each] for each in meant}) == 1 else word
    return word


def _stem(word: str, known: Collection[str]) -> str:
    return next((form for form in (word, *lemmas(word)) if form in known), "")


def _list_slips(word: str) -> Iterator[str]:
    """Yield the spellings one edit away from a word, which seldom change the first letter."""
    places = range(1, len(word))
    yield from (word[:i] + word[i + 1 :] for i in places)
    yield from (word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(len(word) - 1))
    yield from (
        word[:i] + letter + word[i:] for i in range(1, len(word) + 1) for letter in _LETTERS
    )


def _swap_keys(word: str) -> Iterator[str]:
    """Yield the word with one letter replaced by a neighbour on the keyboard."""
    for i, letter in enumerate(word):
        for row in _KEYS if i else ():
            place = row.find(letter)
            near = row[max(0, place - 1) : place + 2].replace(letter, "") if place >= 0 else ""
            yield from (word[:i] + other + word[i + 1 :] for other in near)
