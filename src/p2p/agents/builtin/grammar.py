"""From a prompt to goals: which motion, where to, how fast, with which limb, in what style.

The words stand in `lexicon`; here is how they combine. A motion opens a goal; directions, speeds
and stated numbers belong to the motion before them, or to the next one if none came yet. A
quality ("upright", "smoothly") is a goal of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from p2p.agents.builtin.context import leave_out_context
from p2p.agents.builtin.goals import (
    HELD,
    LOWERED,
    TRAVEL,
    Goal,
    Parsed,
    cross,
    fold_goals,
    merge_goals,
    rises,
    split_into_parts,
    with_destination,
)
from p2p.agents.builtin.lexicon import (
    BACK_POSTURES,
    BACKS,
    BETWEEN,
    COUNTED,
    DEGREES,
    EITHER_SIDE,
    LEANING,
    LEXICON,
    LIGHT_VERBS,
    LIMB_POSTURES,
    LIMBS,
    LONGEST_PHRASE,
    MANNERS,
    OBJECT_WORDS,
    OPPOSITE,
    OWNERS,
    REMARKS,
    SEQUENCE,
    SIDES,
    SIMILES,
    STAYING,
    STOP_WORDS,
    SUBJECTS,
    TARGET_WORDS,
    THINGS,
    Amount,
    Entry,
    Token,
    correct_spelling,
    entry_of,
    find_canonical,
    lemmas,
    manner_of,
    normalise_text,
    plain,
    tokens_of,
)

_LEGS = frozenset({"leg", "foot"})
_ANY_WAY = TRAVEL | {"hop"}
"""What goes forward and to a side at once, if both are asked for."""
_PASSED_OVER = (
    DEGREES | OWNERS | {"a", "an", "is", "kept", "held", "nice", "nicely", "and", "very", "as"}
)
"""Between a back and how it is."""
_LEANS_BY = DEGREES | OWNERS | {"a", "bit", "little", "slightly", "far", "way", *LIMBS}
_LEANS = frozenset({"lean", "tilt", "pitch", "bend"})
_ARE = frozenset({"is", "are", "was", "were", "you're", "be"})
_STOPS = frozenset(",.!?:")
_HEADS = frozenset({"head", "heads", "heading", "headed"})
_BUT, _ON = frozenset({"only", "just"}), frozenset({"on", "using"})
"""Between what it goes on and the limb; and before that."""
_TOUCHES = frozenset({"touch", "hit", "strike", "meet", "contact", "graze"})
_WAYS = frozenset({"forward", "backward", "left", "right"})
OPPOSITE_SIDES = {"left": "right", "right": "left", "front": "back", "back": "front"}
_REAL = frozenset({"real", "true", "proper", "actual", "genuine", "wild", "typical", "little"})
"""Of what something is done like, these say nothing."""
_SOMEBODY = frozenset({"you", "it", "he", "she", "they", "we", "someone", "somebody", "there"})
_ENDS_CLAUSE = frozenset({"and", "but", "while", "then", "with", "without"})
_ARTICLES = (["a"], ["an"], ["the"])
_NOUNS = frozenset({*COUNTED, *(f"{noun}s" for noun in COUNTED)})


@dataclass(slots=True)
class _Reader:
    """One part of a prompt, read from left to right."""

    lexicon: Mapping[str, Entry]
    limbs: Mapping[str, str]
    subjects: Collection[str]
    """Limbs whose name adds nothing to what is asked of the whole."""
    goals: list[Goal] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    negated: str = ""
    illustrations: list[str] = field(default_factory=list)
    """Likenesses that say again what was said."""
    forbidden: str = ""
    """The negation of the last goal, which goes on after `or`."""
    carrying: str = ""
    """A verb such as `put`, until it is said where to."""
    pending: Goal = field(default_factory=lambda: Goal(""))
    """Directions and speeds that came before any motion."""
    limb_noun: str = ""
    """That of the last limb, which `the left one` means."""
    last_limb: tuple[str, ...] = ()
    """To which there may be another."""
    one_legged: str = ""
    """The word for the one leg that it is on, which is yet to be named."""
    before: list[str] = field(default_factory=list)
    """The words that were read."""

    def read(self, text: str) -> None:
        tokens = tokens_of(text)
        i = 0
        while i < len(tokens):
            rest = tokens[i:]
            size = (
                self._read_back(rest)
                or self._read_lean(rest)
                or self._read_simile(rest)
                or self._phrase(rest, 2)
                or self._limb(rest)
                or self._phrase(rest)
                or self._single(rest[0])
            )
            self.before += [token.word for token in rest[:size]]
            i += size
        if self.pending.direction == "target":  # get the finger to the target
            self._open(Goal("reach"))
        elif self.pending.direction == "start":
            self._open(Goal("return"))
        elif self.pending.direction in ("up", "down", "away"):
            self.unused += self.pending.words
        elif self.pending != Goal(""):  # "fast!": a way to move, so move
            self._open(Goal("go"))
        if self.one_legged:
            self.unused.remove(self.one_legged)
            self._open(Goal("one_leg", words=(f"one {self.one_legged}",)))
        self._drop_negation()
        self._drop_carrying()

    def _limb(self, tokens: Sequence[Token]) -> int:
        """`front left leg`: sides, then the noun; gives how many tokens it took."""
        limb, size = self._named_limb(tokens)
        if not size:
            return 0
        noun, word = limb[-1], tokens[size - 1].word
        words = tuple(token.word for token in tokens[:size])
        carried_by = self._stands_on(limb, word)
        posture, taken = self._limb_posture(tokens[size:])
        phrase = (*words, *(token.word for token in tokens[size : size + taken]))
        moved = self._last(lambda goal: goal.motion in ("raise", "lower") and not goal.limb)
        if moved is not None:
            goal = self.goals[moved]
            same = posture in ("overhead", goal.motion)
            motion, words = (posture, phrase) if same else (goal.motion, words)
            moving = replace(goal, motion=motion, limb=limb, words=(*goal.words, *words))
            self.goals[moved] = moving
            return size + taken if same or not posture else size
        if carried_by is not None:
            if self.one_legged:
                self.unused.remove(self.one_legged)
            self.one_legged = ""
            self._open(Goal("raise", limb=carried_by, words=words))
        elif posture and noun not in self.subjects:
            self.carrying = ""
            self._open(Goal(posture, limb=limb, words=phrase))
            return size + taken
        elif noun not in self.subjects:
            on = self._previous(2, _BUT)
            is_on_one = on[1:] == ["one"] and on[0] in _ON and noun in _LEGS
            self.one_legged = word if is_on_one else ""
            self.unused += words
        return size if posture else size + taken

    def _named_limb(self, tokens: Sequence[Token]) -> tuple[tuple[str, ...], int]:
        """The limb that the first tokens name, and how many they are; 0: they name none."""
        words = [token.word for token in tokens[:4]]
        count = next((n for n, word in enumerate(words) if word not in SIDES), len(words))
        if count >= len(words) or self._is_verb(tokens):
            return (), 0
        noun = self.limbs.get(words[count], "")
        if not noun and count and words[count] == "one":
            noun = self.limb_noun
        if not noun:
            return (), 0
        sides = tuple(SIDES[word] for word in words[:count])
        if words[count] in ("arms", "hands") and not sides:
            sides = ("both",)
        if self._previous(1) == ["other"] and self.last_limb and not sides:
            sides = tuple(OPPOSITE_SIDES.get(side, side) for side in self.last_limb[:-1])
            self.unused = [word for word in self.unused if word != "other"]
        self.last_limb, self.limb_noun = (*sides, noun), noun
        return self.last_limb, count + 1

    def _is_verb(self, tokens: Sequence[Token]) -> bool:
        """Return whether `head` is to go, as before a direction."""
        if tokens[0].word not in _HEADS or OWNERS & {*self.before[-1:]}:
            return False
        words = [token.word for token in tokens[1:LONGEST_PHRASE]]
        entries = (self.lexicon.get(" ".join(words[:size])) for size in range(len(words), 0, -1))
        first = next((entry for entry in entries if entry), None)
        ways = first and first.slot == "direction" and first.value not in ("up", "down")
        return bool(ways or (first and first.value == "straight"))

    def _stands_on(self, limb: tuple[str, ...], noun: str) -> tuple[str, ...] | None:
        """The leg that is in the air where one is named that it is on."""
        before = self._previous(1, OWNERS | _BUT | {"one"})
        on = self.one_legged or (before and before[0] in _ON)
        one = len(limb) == 2 and limb[0] in OPPOSITE_SIDES and noun in ("leg", "foot", "paw")
        if limb[-1] not in _LEGS or not on or not one:
            return None
        return (OPPOSITE_SIDES[limb[0]], limb[1])

    def _limb_posture(self, tokens: Sequence[Token]) -> tuple[str, int]:
        """`up`, `in the air`, or, where it is forbidden, `touching`: what is asked of a limb."""
        forbids = [self._forbids(token) for token in tokens]
        held = next(
            (n for n, token in enumerate(tokens) if token.word not in BETWEEN and not forbids[n]), 0
        )
        words = [token.word for token in tokens[held : held + 4]]
        verb = tokens[held].base if (self.negated or any(forbids[:held])) and words else ""
        on_the_ground = words[1:3] in (["the", "ground"], ["the", "floor"])
        verb = "touch" if verb in _TOUCHES else verb
        if verb == "touch" or (verb == "leave" and on_the_ground):
            self.negated = ""
            asked = "untouched" if verb == "touch" else "planted"
            return asked, held + (3 if on_the_ground else 1)
        if any(forbids[:held]):
            return "", 0
        for size in range(len(words), 0, -1):
            posture = LIMB_POSTURES.get(" ".join(words[:size]))
            if posture is not None:
                self.unused += [] if posture else words[:size]  # arms out to the sides
                more, taken = self._limb_posture(tokens[held + size :]) if posture else ("", 0)
                if {posture, more} <= {"raise", "overhead"}:  # raised above the head
                    return min(posture, more), held + size + taken
                return posture, held + size
        return "", 0

    def _forbids(self, token: Token) -> bool:
        entry = self.lexicon.get(token.word)
        return entry is not None and entry.slot == "negation"

    def _previous(self, size: int, passing: Collection[str] = ()) -> list[str]:
        """The last words that were read, without those to pass over."""
        return [word for word in self.before if word not in passing][-size:]

    def _read_back(self, tokens: Sequence[Token]) -> int:
        """Read `the back` as a body part with a posture, and not as a direction."""
        words = [token.word for token in tokens[:8]]
        own = self.before[-1:] in ([], [""], ["with"], ["keep"], ["keeping"], ["and"])
        ends = words[1:2] and words[1] in BACKS and "" in words[2:3]
        if own and ends and words[0] in BACK_POSTURES:  # straight back, arms down
            self._take(Entry("quality", BACK_POSTURES[words[0]]), f"{words[0]} back")
            return 2
        if own and words[0] in BACKS and words[1:2] and words[1] in BACK_POSTURES:
            self._take(Entry("quality", BACK_POSTURES[words[1]]), f"back {words[1]}")
            return 2
        if words[0] in OWNERS and words[1:2] and words[1] in BACKS:
            after = 2 + next((n for n, w in enumerate(words[2:]) if w not in _PASSED_OVER), 0)
            following = [*words[after:], ""]
            if posture := BACK_POSTURES.get(following[0]):
                self._take(Entry("quality", posture), f"back {following[0]}")
                return after + 1
            which = next((word for word in words[2:] if word not in SIDES), "")
            if which in self.limbs or which in ("flip", "flips"):
                return 0
            self.unused.append(words[1])
            return 2
        return self._read_back_posture(words) if words[0] in OWNERS | {"a", "an", "with"} else 0

    def _read_back_posture(self, words: Sequence[str]) -> int:
        """Read a posture of the back, as in `with a level back`."""
        at = next((n for n, w in enumerate(words) if n and w not in _PASSED_OVER), 0)
        how, noun, which = [*words[at:], "", "", ""][:3]
        if not how or noun not in BACKS or which in self.limbs or which in _NOUNS:
            return 0
        if posture := BACK_POSTURES.get(how):
            self._take(Entry("quality", posture), f"{how} {noun}")
        elif how in STOP_WORDS or how in self.limbs or entry_of(how, self.lexicon):
            return 0  # a step back
        else:
            self.unused += [how, noun]
        return at + 2

    def _read_lean(self, tokens: Sequence[Token]) -> int:
        """Read `lean back` or `facing forward` as a posture, and not as a direction."""
        if LEANING.isdisjoint(lemmas(tokens[0].word)):
            return 0
        words = [token.word for token in tokens]
        if " ".join(words[:2]) in self.lexicon:  # lie face down
            return 0
        first = next((n for n, w in enumerate(words) if n and w not in _LEANS_BY), len(words))
        for start in (1, first):
            for last in range(min(len(words), start + 4), start, -1):
                entry = self.lexicon.get(" ".join(words[start:last]))
                if entry and entry.slot == "direction":
                    leans = find_canonical(words[0]) in _LEANS and entry.value not in ("up", "down")
                    if leans and not self.negated:
                        self.goals.append(Goal("lean", entry.value, words=tuple(words[:last])))
                    else:
                        self._drop_negation()
                        self.unused += [words[0], *words[start:last]]
                    return last
        return 0

    def _read_simile(self, tokens: Sequence[Token]) -> int:
        """Read a simile such as `like a kangaroo` as its motion, unless the motion was named."""
        words = [token.word for token in tokens[:7]]
        if words[:2] in (["as", "if"], ["as", "though"]) or (
            words[0] == "like" and words[1:2] and words[1] in _SOMEBODY
        ):
            return self._clause(tokens)
        if words[0] != "like":
            return self._read_likeness(tokens[:7])
        first = 2 if words[1:2] and words[1] in ("a", "an") else 1
        while words[first : first + 1] and words[first] in _REAL:
            first += 1
        for last in range(len(words), first, -1):
            phrase = " ".join(words[first:last])
            meanings = SIMILES.get(phrase) or SIMILES.get(phrase.removesuffix("s"), [])
            if not meanings:
                continue
            (motion, direction, speed), same = meanings[0], None
            for meaning in meanings:
                if (alike := self._find_illustrated(meaning[0])) is not None:
                    (motion, direction, speed), same = meaning, alike
            if same is None:
                self._open(Goal(motion, direction, speed, words=(phrase,)))
            else:
                goal = self.goals[same]
                sides = (g.direction for g in self.goals if g.direction in ("left", "right"))
                direction = goal.direction or next(sides, direction)  # to the right like a crab
                speed = goal.speed or speed
                words_used = (*goal.words, phrase)
                self.goals[same] = replace(goal, direction=direction, speed=speed, words=words_used)
            return last
        if first == 2 and {*words[2:3]} & STOP_WORDS:  # like a robot
            self.unused.append(" ".join(words[:3]))
            return 3
        return 0

    def _find_illustrated(self, motion: str) -> int | None:
        """Find the last goal that a likeness of this motion illustrates."""
        alike = TRAVEL if motion in ("go", "run") else {motion}
        return self._last(lambda goal: goal.motion in alike and not goal.negated)

    def _clause(self, tokens: Sequence[Token]) -> int:
        """`as if it rained`: a demand as a whole, of which no word is one by itself."""
        if any(
            " ".join(token.word for token in tokens[:size]) in self.lexicon
            for size in range(2, LONGEST_PHRASE + 1)
        ):
            return 0
        end = next(
            (n for n, token in enumerate(tokens) if not token.word or token.word in _ENDS_CLAUSE),
            len(tokens),
        )
        text = " ".join(token.word for token in tokens[:end])
        if self._is_restated(tokens[:end]):
            self.illustrations.append(f"“{text}” only illustrates what is asked for")
        else:
            self.unused.append(text)
        return end

    def _is_restated(self, tokens: Sequence[Token]) -> bool:
        """Return whether a likeness only repeats the manner that was named before."""
        how = (manner_of(word) for goal in self.goals for word in goal.words)
        said = any(manner not in (None, "", "walk") for manner in how) or any(
            self._is_style(goal.motion) or goal.speed or goal.amount for goal in self.goals
        )
        words = [token.word for token in tokens]
        is_one = _ARE & {*words} and any(word in SIMILES or word in MANNERS for word in words)
        own = any(word in SIDES or word in self.limbs for word in words)
        return said and not own and not is_one and not any(map(self._forbids, tokens))

    def _read_likeness(self, tokens: Sequence[Token]) -> int:
        """Read a simile, as in `as still as a statue`, as its quality alone."""
        words = [token.word for token in tokens]
        first = int(words[0] == "as")
        if words[first + 1 : first + 2] != ["as"] or words[first + 2 : first + 3] not in _ARTICLES:
            return 0
        entry = entry_of(words[first], self.lexicon)
        if entry is None or not (entry.slot in ("quality", "speed") or entry.value == "stand"):
            return 0
        self._take(entry, words[first])
        known = (n for n in range(first + 4, len(words)) if not self._is_foreign(words[n]))
        return min(next(known, len(words)), first + 5)

    def _is_foreign(self, word: str) -> bool:
        return bool(word) and word not in STOP_WORDS and not entry_of(word, self.lexicon)

    def _phrase(self, tokens: Sequence[Token], shortest: int = 1) -> int:
        for size in range(min(LONGEST_PHRASE, len(tokens)), shortest - 1, -1):
            words = [token.word for token in tokens[:size]]
            if "" in words:
                continue
            entry = self.lexicon.get(" ".join(words))
            entry = entry or self.lexicon.get(" ".join(token.base for token in tokens[:size]))
            if entry is None:
                continue
            following = tokens[size] if size < len(tokens) else Token("", "", "", None)
            if size > 1 and words[-1] in SIDES and following.word in (*self.limbs, "one"):
                continue  # on the back legs, on the right one
            if size == 1 and (tokens[0].base in STAYING or entry.slot == "keep"):
                entry = self._read_staying(entry, tokens[0].base, tokens[1:])
            phrase = " ".join(words)
            if entry.slot == "direction" and following.word in _NOUNS:  # a backward flip
                self.pending = merge_goals(self.pending, Goal("", entry.value, words=(phrase,)))
            else:
                self._take(entry, phrase)
            return size
        return 0

    def _read_staying(self, entry: Entry, verb: str, tokens: Sequence[Token]) -> Entry:
        """Read `stay` or `keep` by what follows: `stay low` is a quality, `hold a foot up` a limb.

        A pole that is kept up is balanced.
        """
        passing = STOP_WORDS | DEGREES
        left = [token for token in tokens if token.word not in passing or not token.word]
        following = self.lexicon.get(left[0].base) if left else None
        if following is not None and following.slot == "quality":
            # To stand tall is to stand; to stay tall is no more than that.
            return entry if entry.value == "stand" and verb == "stand" else Entry("keep", "keep")
        noun = next((n for n, token in enumerate(left) if token.word not in SIDES), len(left))
        limb = self.limbs.get(left[noun].word) if noun < len(left) else None
        after = left[noun + 1].word if noun + 1 < len(left) else ""
        state = self.lexicon.get(after)
        if limb == "pole" and state and state.value in ("up", "upright", "stable"):
            return Entry("motion", "balance")
        named = next((n for n, token in enumerate(tokens) if token.word in self.limbs), None)
        if limb == "pole" and named is not None:
            posture, _ = self._limb_posture(tokens[named + 1 :])
            entry = Entry("motion", "balance") if posture == "raise" else entry
        with_a_limb = bool(tokens) and tokens[0].word == "with"  # it stays, and the limb is held
        if limb is None or named is None or limb in self.subjects or with_a_limb:
            return entry
        posture, _ = self._limb_posture(tokens[named + 1 :])
        return Entry("keep", "keep") if posture else entry

    def _take(self, entry: Entry, phrase: str) -> None:
        if entry.slot == "negation":
            self._drop_negation()
            self.negated = phrase
        elif entry.slot == "carry":
            self._drop_carrying()
            self.carrying = phrase
        elif entry.slot in ("keep", "filler") or (
            entry.value == "balance" and self._last(lambda goal: goal.motion == "raise") is not None
        ):  # raise your hand and keep it up
            pass
        elif entry.slot in ("motion", "quality", "comparative"):
            self._open(Goal(entry.value, entry.direction, entry.speed, words=(phrase,)))
        elif entry.slot == "direction":
            self._modify(Goal("", direction=entry.value, words=(phrase,)))
        else:
            self._modify(Goal("", speed=entry.value, words=(phrase,)))

    def _single(self, token: Token) -> int:
        if token.amount and token.amount.unit == "s" and self.before[-1:] in _DEADLINES:
            self.unused.append(f"{self.before[-1]} {token.text}")
        elif token.amount and token.amount.unit in ("s", "share") and not token.amount.bound:
            self._last_for(token.amount, token.text)
        elif token.amount:
            self._modify(Goal("", amount=token.amount, words=(token.text,)))
        elif (
            token.text in _STOPS and self.negated and self.before[-1:] != self.negated.split()[-1:]
        ):
            self._drop_negation()  # it does not reach into the next clause
        elif token.word == "off" and self._follows_travel():
            pass  # dash off
        elif token.word in ("or", "nor") and self.forbidden:
            self.negated = self.forbidden  # without stopping or turning
        elif token.word and token.word not in STOP_WORDS:
            self.unused.append(token.word)
        elif not token.word and token.text[0].isdigit():
            self.unused.append(token.text)
        return 1

    def _last_for(self, time: Amount, text: str) -> None:
        """Say of the last goal, or of the next one, how long it is to last."""
        goal = self.goals[-1] if self.goals else self.pending
        if goal.lasts or (not self.goals and not goal.words and self._previous(1) != ["for"]):
            self.unused.append(text)
        elif self.goals:
            self.goals[-1] = replace(goal, lasts=time)
        else:
            self.pending = replace(goal, lasts=time)

    def _follows_travel(self) -> bool:
        entry = entry_of(self.before[-1], self.lexicon) if self.before else None
        return entry is not None and entry.value in TRAVEL

    def _open(self, goal: Goal) -> None:
        pending, self.pending = self.pending, Goal("")
        if self._is_style(goal.motion):
            pending, self.pending = Goal(""), pending
        else:
            if (
                find_canonical(self.carrying) in LIGHT_VERBS
                and self._last_demand() == self.carrying
            ):
                self.carrying = ""
            self._drop_carrying()
        negated, self.forbidden, self.negated = bool(self.negated), self.negated, ""
        if self.goals and self.before and self.goals[-1].words[-1:] == (self.before[-1],):
            same = self.goals[-1].motion == goal.motion and self._is_style(goal.motion)
            same |= goal.motion in ("on_back", "on_front")  # do not flip onto your back
            negated |= same and self.goals[-1].negated  # no violent shaking
        whole = merge_goals(pending, goal)
        self.goals.append(replace(whole, motion=goal.motion, limb=goal.limb, negated=negated))

    def _forbid_way(self, change: Goal) -> None:
        """Record a forbidden direction, which is not a direction to go."""
        self.forbidden = self.negated
        words, self.negated = (*self.negated.split(), *change.words), ""
        travels = self._last(lambda goal: goal.motion in TRAVEL and not goal.negated)
        if travels is None or change.direction not in _WAYS:
            self.unused += words
        else:
            self.goals.append(Goal("go", change.direction, negated=True, words=words))

    def _modify(self, change: Goal) -> None:
        """A direction, a speed or a number for the last motion; for the next if none came yet."""
        if self.carrying and change.direction in _CARRIED:
            words, self.carrying = (self.carrying, *change.words), ""
            self._open(Goal(_CARRIED[change.direction], change.direction, words=words))
            return
        if self.negated and change.direction:
            self._forbid_way(change)
            return
        if self.negated and change.speed:
            flipped = {"fast": "slow", "slow": "medium"}.get(change.speed, change.speed)
            change, self.negated = replace(change, speed=flipped), ""
        last = self._modified_by(change)
        before = self.pending if last is None else self.goals[last]
        if not self._fits(before, change):
            self.unused += change.words
            return
        either = EITHER_SIDE & {*before.words, *change.words}
        if cross(before.direction, change.direction) and not either:
            if last is not None and before.motion in _ANY_WAY:
                way = Goal(before.motion, change.direction, before.speed, words=change.words)
                self.goals.insert(last + 1, way)
            else:
                self.unused += change.words
            return
        opposite = change.direction and before.direction == OPPOSITE.get(change.direction)
        if opposite and not either:
            self.conflicts.append(f"{before.direction} and {change.direction}")
        if last is None:
            self.pending = merge_goals(before, change)
        else:
            self.goals[last] = merge_goals(before, change)

    def _fits(self, before: Goal, change: Goal) -> bool:
        """Return whether a goal can take this up: it has one number and one speed.

        With the nose up, the way to go stays what it is.
        """
        upright = change.direction in ("up", "down") and before.direction
        return not (
            (change.amount and before.amount)
            or (upright and before.direction != OPPOSITE[change.direction])
            or {change.speed, before.speed} == {"fast", "slow"}
        )

    def _modified_by(self, change: Goal) -> int | None:
        """Return the goal of a direction, speed or number, or None for the next goal."""
        motions = _MEASURED_BY.get(change.amount.unit, frozenset()) if change.amount else ()
        fitting = self._last(lambda goal: goal.motion in motions and not goal.amount)
        return self._last(self._is_open) if fitting is None else fitting

    def _is_open(self, goal: Goal) -> bool:
        return not self._is_style(goal.motion) and not (goal.negated and goal.direction)

    def _last_demand(self) -> str:
        """The last word that was read but for fillers and qualities."""
        demands = (
            word
            for word in reversed(self.before)
            if word not in STOP_WORDS
            and not ((entry := entry_of(word, self.lexicon)) and entry.slot in ("quality", "speed"))
        )
        return next(demands, "")

    def _last(self, wanted: Callable[[Goal], bool]) -> int | None:
        places = reversed(range(len(self.goals)))
        return next((place for place in places if wanted(self.goals[place])), None)

    def _is_style(self, motion: str) -> bool:
        return motion in STYLES or (motion in _COMPARED and self.lexicon is REMARKS)

    def _drop_negation(self) -> None:
        if self.negated:
            self.unused += self.negated.split()
        self.negated = ""

    def _drop_carrying(self) -> None:
        if self.carrying:
            self.unused.append(self.carrying)
        self.carrying = ""


_MEASURED_BY = {"m/s": TRAVEL | {"hop"}, "lengths/s": TRAVEL | {"hop"}, "rad/s": {"turn", "spin"},
                "radius": {"turn", "spin"}, "rad": {"turn", "spin", "lean"}}  # fmt: skip
_DEADLINES = (["within"], ["in"], ["under"])
"""Before seconds: by when, which nothing measures; not for how long."""
_CARRIED = {"target": "reach", "away": "leave", "backward": "leave",
            **dict.fromkeys(("left", "right", "forward"), "go")}  # fmt: skip
"""What it means to put or take something there."""


STYLES = frozenset(entry.value for entry in LEXICON.values() if entry.slot == "quality")
_COMPARED = frozenset(entry.value for entry in REMARKS.values() if entry.slot == "comparative")


_MOVES_BY = frozenset({"in_turn", "lifted_feet", "long_strides", "high_steps", "dragging"})
"""Styles of one that goes somewhere, though it is not said that it does."""


_MERELY_STAY = frozenset(
    {"stay", "stays", "staying", "hold", "held", "holding", "remain", "remaining", "rest"}
)


_STAYS = frozenset({"stand", "stop", "stable", "upright"})
"""After something that is held, these say no more than to hold it."""


def _drop_staying(part: Sequence[Goal], unused: list[str]) -> list[Goal]:
    """Drop `stay` next to travel: it introduces a quality, in words that are not known."""
    goes = any(goal.motion in _ANY_WAY and not goal.negated for goal in part)
    stays = [goal for goal in part if goes and goal.motion == "stand" and not goal.negated
             and _MERELY_STAY.issuperset(goal.words)]  # fmt: skip
    unused += [word for goal in stays for word in goal.words]
    return [goal for goal in part if goal not in stays]


def parse(
    prompt: str,
    own_limbs: Mapping[str, str] | None = None,
    *,
    subjects: Collection[str] = (),
    remark: bool = False,
) -> Parsed:
    """Parse a prompt into goals, and list the words that the lexicon does not know.

    Args:
        prompt: What the person wrote.
        own_limbs: More nouns for limbs: what the environment's model calls its parts.
        subjects: Nouns that add nothing, since they name what moves or is moved there.
        remark: Take comparatives ("faster") as goals, too.
    """
    lexicon = REMARKS if remark else LEXICON
    limbs = {**(own_limbs or {}), **LIMBS, **{word: word for word in subjects if word not in LIMBS}}
    own = None if own_limbs is None else {"torso", *(LIMBS.get(word, word) for word in own_limbs)}
    whole = {*(SUBJECTS if own is None else SUBJECTS & own), *subjects}
    parts: list[tuple[Goal, ...]] = []
    unused: list[str] = []
    conflicts: list[str] = []
    illustrations: list[str] = []
    text, corrections = correct_spelling(plain(prompt), frozenset({*limbs, *subjects}))
    text, left_out = leave_out_context(text, limbs)
    text = normalise_text(text)
    if not OBJECT_WORDS.isdisjoint(subjects):
        text = re.sub(rf"\b(?:white\s+)?(?:{'|'.join(OBJECT_WORDS)})\b", "object", text)
    things = own_limbs is None or not (OBJECT_WORDS | TARGET_WORDS).isdisjoint(subjects)
    fillers = STOP_WORDS | THINGS if things else STOP_WORDS
    for piece in re.split(SEQUENCE, text):
        reader = _Reader(lexicon, limbs, whole)
        reader.read(piece)
        unused += [word for word in reader.unused if word not in fillers]
        conflicts += reader.conflicts
        illustrations += reader.illustrations
        for part in split_into_parts([with_destination(goal) for goal in reader.goals]):
            tidy = fold_goals(_drop_staying(part, unused))
            units = {goal.amount.unit for goal in tidy if goal.amount}
            lost = [goal.amount for goal in part if goal.amount and goal.amount.unit not in units]
            unused += [f"{amount.value:.3g} {amount.unit}" for amount in lost]
            if parts and all(goal.negated or goal.motion in STYLES for goal in tidy):
                parts[-1] = fold_goals((*parts[-1], *tidy))
                continue
            before = {goal.motion for goal in parts[-1]} if parts else set()
            lasting = before & (HELD | {"stand"}) and not (before & LOWERED and rises(tidy))
            if lasting and {goal.motion for goal in tidy} <= _STAYS:
                parts[-1] = fold_goals((*parts[-1], *tidy))
            else:
                parts.append(tidy)
    styles = [goal.motion for goal in parts[0] if goal.motion in STYLES] if parts else []
    if len(styles) == sum(map(len, parts)) and not _MOVES_BY.isdisjoint(styles):
        parts[0] = (Goal("go"), *parts[0])
    ways = [goal.direction for part in parts for goal in part]
    if any(cross(one, other) for one, other in pairwise(ways)):
        unused = [word for word in unused if word not in ("diagonal", "diagonally")]
    return Parsed(
        tuple(parts),
        tuple(dict.fromkeys(unused)),
        tuple(dict.fromkeys(conflicts)),
        (*corrections, *left_out, *illustrations),
    )
