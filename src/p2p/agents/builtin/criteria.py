"""From a prompt to criteria, and to an environment that can do what it asks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from p2p.agents.builtin.builder import CriteriaBuilder
from p2p.agents.builtin.goals import LOWERED, RISING, Goal, Parsed, rises
from p2p.agents.builtin.grammar import STYLES, parse
from p2p.agents.builtin.implied import TUMBLING, add_fillers, add_implied
from p2p.agents.builtin.lexicon import (
    EITHER_SIDE,
    STOP_WORDS,
    Names,
    entry_of,
    find_canonical,
    index_phrases,
    load_words,
)
from p2p.agents.builtin.measures import WHOLE, Window
from p2p.agents.builtin.morphology import Morphology, morphology_of
from p2p.agents.builtin.motions import (
    OPPOSITES,
    PACES,
    ROWS,
    RULES,
    WAYS,
    require_steps,
    slow_motion,
    unmeasured_manners,
)
from p2p.agents.builtin.quantities import quantities_of
from p2p.agents.requests import (
    EnvironmentChoice,
    EnvironmentChoices,
    IntentProposal,
    IntentRequest,
)
from p2p.training.hp_presets import quick_config
from p2p.training.model_files.store import is_model

PROVIDERS = (
    "To have any prompt understood, configure a language model: set ANTHROPIC_API_KEY, "
    "OPENAI_API_KEY or GEMINI_API_KEY, or name a local one (Ollama, vLLM) as the model."
)

UNKNOWN_MOTION = (
    "The keyless author knows no motion in this prompt (ignored: {}). It reads English only; "
    "with a model any language works."
)
EXAMPLES = ("run forward fast", "walk backward slowly", "stand still", "balance the pole calmly",
            "reach the target", "push the object", "balance with little effort")  # fmt: skip
"""Of which a refusal names those that work."""
MOST = 30


SHORTEST = 0.02
"""Of a part of a sequence, as a share of the episode."""


def divide_time(parts: Sequence[Sequence[Goal]], seconds: float) -> tuple[Window, ...]:
    """Divide the time among a sequence's parts: as stated, the rest in equal shares.

    Raises ValueError where the stated times are longer than the episode.
    """
    stated = [max((_share(goal, seconds) for goal in part), default=0.0) for part in parts]
    if sum(stated) > 1.0 + 1e-6:
        raise ValueError
    free = stated.count(0.0)
    if 1.0 - sum(stated) < SHORTEST * free:
        raise ValueError
    rest = (1.0 - sum(stated)) / free if free else 0.0
    ends = [sum(share or rest for share in stated[: n + 1]) for n in range(len(parts))]
    edges = [0.0, *(_edge(end) for end in ends[:-1]), 1.0]
    return tuple(pairwise(edges))


def _share(goal: Goal, seconds: float) -> float:
    if goal.lasts is None:
        return 0.0
    return goal.lasts.value / (1.0 if goal.lasts.unit == "share" else seconds)


def _edge(share: float) -> float:
    """Halves and thirds have names."""
    return next((edge for edge in (0.5, 1 / 3, 2 / 3) if abs(share - edge) < 5e-4), round(share, 3))


def write_criteria(request: IntentRequest) -> IntentProposal:
    """Write the criteria of a prompt, or a refusal if none can be measured here."""
    model = morphology_of(request.env_id)
    parsed = model.parse(request.prompt)
    if not parsed.goals:
        ignored = ", ".join(parsed.unused) or " ".join(request.prompt.split())
        return IntentProposal(
            criteria=(),
            unused_words=parsed.unused,
            refusal=f"{UNKNOWN_MOTION.format(ignored)} On {model.spec.name} it understands, for "
            f"example: {_examples(model)}. {PROVIDERS}",
        )
    builder = build_criteria(parsed, model)
    conflicts = (*parsed.conflicts, *(f"“{one}” and “{two}”" for one, two in builder.resolve()))
    if conflicts:
        return IntentProposal(
            criteria=(),
            unused_words=parsed.unused,
            refusal=f"The prompt asks for {'; '.join(conflicts)} at the same time. Leave one of "
            "them out, or say “then” between them.",
        )
    unused = _sort_by_place(request.prompt, [*_foreign(parsed.unused, model), *builder.uncovered])
    if not builder.has_task:
        cannot = "; ".join(dict.fromkeys(builder.cannot)) or "what was asked"
        return IntentProposal(
            criteria=(),
            unused_words=unused,
            refusal=f"The keyless author cannot measure on {model.spec.name}: {cannot}. "
            f"{_describe_model_parts(model)} {PROVIDERS}",
        )
    criteria = builder.criteria
    if len(criteria) > MOST:  # of a long sequence: what decides comes before what only ranks
        criteria = [criterion for criterion in criteria if criterion.hard]
    if len(criteria) > MOST:
        return IntentProposal(
            criteria=(),
            unused_words=unused,
            refusal=f"The prompt comes to {len(criteria)} criteria, and {MOST} is the most. Leave "
            "a part of it out.",
        )
    return IntentProposal(
        criteria=tuple(criteria),
        unused_words=unused,
        note=_note(parsed, builder),
        assumptions=parsed.assumptions,
        training=training_for(parsed, model),
    )


def _examples(model: Morphology) -> str:
    """Prompts that work in this environment."""
    working = []
    for prompt in EXAMPLES:
        parsed = model.parse(prompt)
        builder = build_criteria(parsed, model)
        whole = not (builder.cannot or builder.uncovered or parsed.unused)
        if builder.has_task and whole:
            working.append(f"“{prompt}”")
    return ", ".join(working[:3])


_SWINGS = frozenset({"swing", "swinging", "sway", "swaying", "rock"})


def _describe_model_parts(model: Morphology) -> str:
    """Describe the parts recognised in a model file; otherwise suggest another environment."""
    if not is_model(model.spec.env_id):
        return "Another environment may be able to."
    feet = ", ".join(foot.name for foot in model.spec.feet) or "no feet"
    taken = [
        f"{model.root.name} for the body, {feet} to stand on" if model.root else "a fixed base",
        *([f"{model.hand.name} to reach with"] if model.root is None and model.hand else []),
        f"{model.goal.name} as the target" if model.goal else "nothing as the target",
    ]
    return (
        f"It takes {', '.join(taken)}. Say in {model.spec.name}.toml, beside the model file, what "
        'is otherwise: trunk = "BODY", and under [parts] what a prompt may call them: "target" = '
        '"BODY", "left arm" = "BODY".'
    )


_LATER = {"high": 1, "powerful": 1, "repeatedly": 1, "low": 2}
"""A jump is high by its own criterion, so that motions come first."""


_ABOVE_LEGS = frozenset({"arm", "hand", "elbow", "head"})
"""Limbs that may be held up while it walks as any other."""
_LEGS = frozenset({"leg", "foot", "feet", "limp", "limb", "paw", "hobble"})
"""Words that, where they are not understood, may ask for fewer feet than there are."""


def build_criteria(parsed: Parsed, model: Morphology) -> CriteriaBuilder:
    """The criteria that the goals ask for, and the usual ones on top."""
    builder = CriteriaBuilder(model, quantities_of(model.spec.env_id))
    motions_served: list[bool] = []
    was_low = False
    try:
        windows = divide_time(parsed.parts, model.horizon * model.spec.dt)
    except ValueError:
        windows = divide_time([()] * len(parsed.parts), 1.0)
        times = (goal.lasts for goal in parsed.goals if goal.lasts)
        builder.uncovered += [f"{time.value:.3g} {time.unit}" for time in times]
    for part, window in zip(parsed.parts, windows, strict=True):
        builder.window = window
        motions = {goal.motion for goal in part if not goal.negated}
        # Move the cart from side to side: moving is how it is done, and no goal of its own.
        others = motions - {"go", "run"}
        # Back and forth is a way to go; arms that swing are not.
        swings = any(
            g.motion == "sway" and not _SWINGS & set(map(find_canonical, g.words)) for g in part
        )
        manner = bool(others) and (model.root is None or swings)
        builder.sideways = any(goal.direction in ("left", "right") for goal in part)
        builder.turning = bool(motions & {"turn", "spin", "roll"})
        builder.tumbling = bool(motions & TUMBLING)
        builder.rising = builder.rising or bool(motions & {*RISING, "upright", "stable"})
        builder.swaying = bool(motions & {"sway", "wobbly"})
        builder.settling = bool(motions & {"on_back", "on_front"})
        speeds = (goal.amount_in("m/s") for goal in part if goal.motion in ("go", "run", "crawl"))
        builder.speed = next((speed for speed in speeds if speed), None)
        builder.travelling = bool(motions & {"go", "run", "crawl"})
        builder.stepping = not (
            model.wheels
            or motions & {"hop", "jump"}
            or any(goal.limb and goal.limb[-1] not in _ABOVE_LEGS for goal in part)
        )
        for goal in sorted(part, key=lambda goal: _LATER.get(goal.motion, 0)):
            if not (manner and goal.motion in ("go", "run") and not goal.direction):
                apply_goal(builder, goal)
                if goal.motion not in STYLES:
                    motions_served.append(builder.served)
            else:
                builder.uncovered += unmeasured_manners(builder, goal, goal.motion)
        if was_low and rises(part) and "height" in builder.quantities:
            builder.add(*ROWS["full_height"])
        was_low = bool(motions & LOWERED)
        if not {word.rstrip("s") for words in parsed.unused for word in words.split()} & _LEGS:
            require_steps(builder, part)
    builder.moves = any(motions_served) or not motions_served
    builder.window = WHOLE
    if builder.criteria and not builder.has_task and not builder.cannot:
        # "Do not fall": nothing else is asked for, so that is the task.
        update = {"category": "task", "weight": 1.0}
        builder.criteria[0] = builder.criteria[0].model_copy(update=update)
    if builder.has_task:
        add_implied(builder, {goal.motion for goal in parsed.goals if not goal.negated})
        add_fillers(builder)
    return builder


def _foreign(words: Sequence[str], model: Morphology) -> list[str]:
    """Words that are neither what the environment is called nor what all of its legs are."""
    name = model.spec.name
    own = {name.lower(), *re.findall(r"[A-Z][a-z]+", name.removeprefix("Half"))}
    own |= {alias for alias, env in ALIASES.items() if env == name}
    own |= {1: {"foot", "leg"}, 4: {"four"}}.get(len(model.spec.feet), set())
    return [word for word in words if word.rstrip("s") not in {each.lower() for each in own}]


def _sort_by_place(prompt: str, words: Sequence[str]) -> tuple[str, ...]:
    """Return the words without repetition, in their order in the prompt."""
    text = prompt.lower()
    places = {word: place if (place := text.find(word)) >= 0 else len(text) for word in words}
    return tuple(sorted(places, key=places.__getitem__))


def _note(parsed: Parsed, builder: CriteriaBuilder) -> str:
    notes = []
    if builder.cannot:
        cannot = ", ".join(dict.fromkeys(builder.cannot))
        notes.append(f"Nothing measures in this environment: {cannot}.")
    unseen = [
        criterion.title
        for criterion, measure in zip(builder.criteria, builder.measures, strict=True)
        if criterion.category == "task" and measure.quantity
        if builder.quantities[measure.quantity].code.reward is None
        and not builder.quantities[measure.quantity].felt_as
    ]
    if unseen:
        notes.append(f"The policy does not observe what “{unseen[0]}” needs; only its reward does.")
    if len(parsed.parts) > 1:
        notes.append("The policy observes the time (observe_time), to know which part it is in.")
    return " ".join(notes)


# --- the environment, where none is named ---------------------------------------------------------

_names = load_words(Names, "names")
ALIASES, PREFERRED = index_phrases(_names.aliases), index_phrases(_names.preferred)
"""What people call environments, and the one that shows a motion best, where none is named."""
DEFAULTS = ("HalfCheetah", "Ant")


def choose_environment(request: EnvironmentChoices) -> EnvironmentChoice:
    """Choose a named or able environment, with the reason; None if the words are not known."""
    by_name = {env_id.rpartition("-v")[0] or env_id: env_id for env_id in request.environments}
    parsed = parse(request.prompt)
    named = _find_named(request.prompt, by_name)
    motions = {goal.motion for goal in parsed.goals if not goal.negated}
    if named == "Humanoid" and RISING & motions and "HumanoidStandup" in by_name:
        named = "HumanoidStandup"
    if named:
        return EnvironmentChoice(env_id=by_name[named], reason=f"the prompt names {named}")
    if not parsed.goals:
        ignored = ", ".join(parsed.unused) or " ".join(request.prompt.split())
        examples = ", ".join(f"“{example}”" for example in EXAMPLES[:4])
        return EnvironmentChoice(
            env_id=None,
            reason=f"{UNKNOWN_MOTION.format(ignored)} It understands, for example: {examples}. "
            f"{PROVIDERS}",
        )
    words = set(re.findall(r"[a-z]+", request.prompt.lower()))
    aliases = [name for alias, name in ALIASES.items() if alias in words]
    aliases.sort(key=lambda name: name != "InvertedDoublePendulum")
    if "Humanoid" in aliases and RISING & motions:
        aliases.insert(0, "HumanoidStandup")
    goals = [goal.motion for goal in parsed.goals if goal.motion in motions]
    preferred = [PREFERRED[motion] for motion in goals if motion in PREFERRED]
    asked = ", then ".join(
        " and ".join(" ".join(goal.words) for goal in part) for part in parsed.parts
    )
    for name in dict.fromkeys([*aliases, *preferred, *DEFAULTS, *by_name]):
        if name in by_name:
            builder = build_criteria(parsed, morphology_of(by_name[name]))
            if builder.has_task and not builder.cannot:
                return EnvironmentChoice(env_id=by_name[name], reason=f"{name} can {asked}")
    return EnvironmentChoice(
        env_id=None,
        reason=f"No environment here can {asked}. {PROVIDERS} Or name an environment with --env.",
    )


def _find_named(prompt: str, by_name: Mapping[str, str]) -> str | None:
    text = prompt.lower()
    packed = re.sub(r"[^a-z0-9]", "", text)
    for name in sorted(by_name, key=len, reverse=True):
        whole = re.search(rf"\b{name.lower()}s?\b", text)
        if whole or (len(name) > 5 and name.lower() in packed):
            return name
    return None


# --- one goal -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slots:
    """What besides its name a motion makes use of."""

    directions: frozenset[str] = frozenset()
    speeds: frozenset[str] = frozenset()
    units: frozenset[str] = frozenset()


_ANY_SPEED = frozenset(PACES)
_TRAVEL = Slots(
    frozenset(WAYS), _ANY_SPEED, frozenset({"m/s", "times", "m", "lengths", "lengths/s", "times/s"})
)
_TURNING = Slots(
    frozenset({"clockwise", "counterclockwise", "left", "right"}),
    _ANY_SPEED,
    frozenset({"rad/s", "rad", "times", "times/s", "radius"}),
)
_TUMBLING = Slots(_TRAVEL.directions | _TURNING.directions, units=frozenset({"times"}))
_JUMPING = Slots(frozenset({"up", "down"}), units=frozenset({"m", "times", "times/s"}))
_HOPPING = Slots(frozenset({"up", "down"}), frozenset({"fast", "slow"}), _JUMPING.units)
_TOUCHING = Slots(frozenset({"target", "away"}), frozenset({"fast"}))
_REACHING = replace(_TOUCHING, units=frozenset({"m"}))
SLOTS: Mapping[str, Slots] = {
    **dict.fromkeys(("go", "run", "crawl"), _TRAVEL),
    **dict.fromkeys(("spin", "turn"), _TURNING),
    **dict.fromkeys(("flip", "roll"), _TUMBLING),
    "jump": _JUMPING,
    "hop": _HOPPING,
    **dict.fromkeys(("lean", "nose_down"), Slots(frozenset(WAYS), units=frozenset({"rad"}))),
    **dict.fromkeys(("reach", "push"), _REACHING),
    "touch": _TOUCHING,
    "sway": Slots(frozenset({"left", "right", "up"}), units=frozenset({"times", "m"})),
    "return": Slots(frozenset({"start", "backward"}), _ANY_SPEED),
    "leave": Slots(frozenset({"away", "backward"})),
    **dict.fromkeys(("on_left", "on_right"), Slots(frozenset({"left", "right"}))),
    **dict.fromkeys(
        ("stand", "balance", "raise", "overhead", "untouched"), Slots(frozenset({"up"}))
    ),
    **dict.fromkeys(RISING, Slots(frozenset({"up"}), frozenset({"fast"}))),
    **dict.fromkeys(("lower", "crouch", "lie"), Slots(frozenset({"down"}))),
}
"""Of motions that use any."""


def apply_goal(builder: CriteriaBuilder, goal: Goal) -> None:
    """Add the rows of a goal, and note its words that nothing measures."""
    cannot, builder.served = len(builder.cannot), False
    goal = _adapt_goal(builder, goal)
    name = OPPOSITES.get(goal.motion) if goal.negated else goal.motion
    if name is None or name not in RULES or (goal.negated and goal.direction):
        forbidden = "not " if goal.negated else ""
        builder.cannot.append(f"{forbidden}{goal.motion} {goal.direction}".rstrip())
    else:
        RULES[name](builder, replace(goal, motion=name))
    if len(builder.cannot) > cannot or not builder.served:
        words = ["not"] * goal.negated + list(goal.words)
    else:
        asked = replace(goal, motion=name or goal.motion)
        words = [*_unused_words(builder, asked), *unmeasured_manners(builder, goal, name or "")]
    builder.uncovered += [word for word in words if word not in STOP_WORDS]


def _adapt_goal(builder: CriteriaBuilder, goal: Goal) -> Goal:
    """Express a goal in the terms of this environment.

    Seen from the side, what lives in a plane goes right when it goes forward; a cart that goes to
    the right is on the right; an arm that backs off leaves what it touched.
    """
    if goal.motion == "roll" and builder.model.wheels:
        goal = replace(goal, motion="go")  # on its wheels
    if goal.motion not in ("go", "run", "crawl"):
        return goal
    side = goal.direction if goal.direction in ("left", "right") else ""
    known = builder.quantities
    if side and builder.model.poles:
        return replace(goal, motion=f"on_{side}")
    if side and "forward_speed" in known and "left_speed" not in known:
        ahead = "forward" if side == "right" else "backward"
        return goal if EITHER_SIDE & {*goal.words} else replace(goal, direction=ahead)
    if goal.direction in ("away", "backward") and "hand_distance" in known:
        return replace(goal, motion="leave")
    return goal


def _unused_words(builder: CriteriaBuilder, goal: Goal) -> Iterator[str]:
    """A direction, a speed or a number that the motion cannot use."""
    slots = SLOTS.get(goal.motion, Slots())
    if slots in (_JUMPING, _HOPPING) and goal.direction in WAYS:
        slots = _TRAVEL
    for slot, value, usable in (
        ("direction", goal.direction, slots.directions),
        ("speed", goal.speed, slots.speeds),
    ):
        slow = value == "slow" and slot == "speed" and slow_motion(builder, goal)
        if value and value not in usable and not slow:
            entries = ((word, entry_of(word)) for word in goal.words)
            yield from (word for word, entry in entries if entry and entry.slot == slot)
    amount = goal.amount
    at_most = amount is not None and amount.bound == "at_most" and amount.unit != "m/s"
    if amount is not None and (at_most or amount.unit not in slots.units):
        yield f"{'at most ' if at_most else ''}{amount.value:.3g} {amount.unit}"


# --- settings of the training ---------------------------------------------------------------------


SEQUENCE: Mapping[str, Any] = {"observe_time": True}
"""Of what is done in parts, one after the other: the policy has to know which part it is in."""
LOSABLE_SECONDS: Mapping[str, float] = {"reared": 7.5, "flip": 7.5, "reach": 3.0}
"""How long a training episode is for motions after whose failure the episode lasts: one that has
fallen on its back would lie there for the rest of it."""
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    # Nothing is gained before it is over: small movements never get there.
    "flip": {"log_std_init": 0.0, "gamma": 0.99},
}
STARTS_SECONDS = 2.0
"""How long a training episode of several poles is: they fall at the start or not at all, and who
balances for minutes unlearns the starts that are hard."""
LONGER: Mapping[str, float] = {"sway": 3.0}
"""How many times the steps of its environment's quick settings a motion takes."""


def settings_for(prompt: str, env_id: str) -> dict[str, Any]:
    """Return what the words of a prompt say about its training, whoever wrote the criteria."""
    model = morphology_of(env_id)
    return training_for(model.parse(prompt), model)


def training_for(parsed: Parsed, model: Morphology) -> dict[str, Any]:
    """Return the fields of TrainConfig that suit the prompt in this environment."""
    motions = [goal.motion for goal in parsed.goals if not goal.negated]
    settings: dict[str, Any] = {}
    for motion in motions:
        settings |= SETTINGS.get(motion, {})
    if len(parsed.parts) > 1:
        settings |= SEQUENCE
    elif len(model.poles) > 1 and not model.hangs:
        settings["training_horizon"] = round(STARTS_SECONDS / model.spec.dt)
    elif not model.may_end_early:
        losable = (LOSABLE_SECONDS[motion] for motion in motions if motion in LOSABLE_SECONDS)
        steps = min((round(seconds / model.spec.dt) for seconds in losable), default=model.horizon)
        if steps < model.horizon:
            settings["training_horizon"] = steps
    longer = max((LONGER.get(motion, 1.0) for motion in motions), default=1.0)
    if longer > 1:
        steps = quick_config(model.spec.env_id).total_timesteps
        settings["total_timesteps"] = round(steps * longer)
    return settings
