"""From a prompt to criteria, and to an environment that can do what it asks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from p2p.agents.builtin.apply import apply_goal
from p2p.agents.builtin.builder import CriteriaBuilder
from p2p.agents.builtin.goals import RISING, Parsed
from p2p.agents.builtin.grammar import STYLES, parse
from p2p.agents.builtin.implied import TUMBLING, add_fillers, add_implied
from p2p.agents.builtin.manners import unmeasured_manners
from p2p.agents.builtin.measures import WHOLE, Window
from p2p.agents.builtin.morphology import Morphology, morphology_of
from p2p.agents.builtin.quantities import quantities_of
from p2p.agents.builtin.training import training_for
from p2p.agents.requests import (
    EnvironmentChoice,
    EnvironmentChoices,
    IntentProposal,
    IntentRequest,
)

PROVIDERS = (
    "To have any prompt understood, configure a language model: set ANTHROPIC_API_KEY, "
    "OPENAI_API_KEY or GEMINI_API_KEY, or name a local one (Ollama, vLLM) as the model."
)

EXAMPLES = ("run forward fast", "walk backward slowly", "stand still", "balance the pole calmly",
            "reach the target", "push the object", "balance with little effort")  # fmt: skip
"""Of which a refusal names those that work."""
MOST = 30
_WINDOWS: tuple[tuple[Window, ...], ...] = (
    (WHOLE,),
    ((0.0, 0.5), (0.5, 1.0)),
    ((0.0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1.0)),
)
"""How a sequence of one, two, three parts divides the time."""


def write_criteria(request: IntentRequest) -> IntentProposal:
    """Criteria for a prompt; a refusal where nothing of it can be measured in this environment."""
    model = morphology_of(request.env_id)
    parsed = model.parse(request.prompt)
    if not parsed.goals:
        ignored = ", ".join(parsed.unused) or " ".join(request.prompt.split())
        return IntentProposal(
            criteria=(),
            unused_words=parsed.unused,
            refusal=f"The built-in author knows no motion in this prompt (ignored: {ignored}). On "
            f"{model.spec.name} it understands, for example: {_examples(model)}. {PROVIDERS}",
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
    unused = _in_order(request.prompt, [*_foreign(parsed.unused, model), *builder.uncovered])
    if not builder.has_task:
        cannot = "; ".join(dict.fromkeys(builder.cannot)) or "what was asked"
        return IntentProposal(
            criteria=(),
            unused_words=unused,
            refusal=f"The built-in author cannot measure on {model.spec.name}: {cannot}. Another "
            f"environment may be able to. {PROVIDERS}",
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
        training=training_for(parsed, model),
    )


def _examples(model: Morphology) -> str:
    """Prompts that work in this environment."""
    working = []
    for prompt in EXAMPLES:
        builder = build_criteria(model.parse(prompt), model)
        if builder.has_task and not builder.cannot:
            working.append(f"“{prompt}”")
    return ", ".join(working[:3])


_LATER = {"high": 1, "powerful": 1, "repeatedly": 1, "low": 2}
"""A jump is high by its own criterion, so that motions come first."""


def build_criteria(parsed: Parsed, model: Morphology) -> CriteriaBuilder:
    """The criteria that the goals ask for, and the usual ones on top."""
    builder = CriteriaBuilder(model, quantities_of(model.spec.env_id))
    motions_served: list[bool] = []
    windows = _WINDOWS[min(len(parsed.parts), len(_WINDOWS)) - 1]
    for part, window in zip(parsed.parts, windows, strict=False):
        builder.window = window
        motions = {goal.motion for goal in part if not goal.negated}
        # Move the cart from side to side: moving is how it is done, and no goal of its own.
        others = motions - {"go", "run"}
        manner = bool(others) and (model.root is None or "sway" in others)
        builder.sideways = any(goal.direction in ("left", "right") for goal in part)
        builder.turning = bool(motions & {"turn", "spin", "roll"})
        builder.tumbling = bool(motions & TUMBLING)
        builder.settling = bool(motions & {"on_back", "on_front"})
        builder.travelling = bool(motions & {"go", "run", "crawl"})
        builder.stepping = not (motions & {"hop", "jump"} or any(goal.limb for goal in part))
        for goal in sorted(part, key=lambda goal: _LATER.get(goal.motion, 0)):
            if not (manner and goal.motion in ("go", "run") and not goal.direction):
                apply_goal(builder, goal)
                if goal.motion not in STYLES:
                    motions_served.append(builder.served)
            else:
                builder.uncovered += unmeasured_manners(builder, goal, goal.motion)
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


def _in_order(prompt: str, words: Sequence[str]) -> tuple[str, ...]:
    """Each once, as they stand in the prompt."""
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
        notes.append(
            f"The observation does not show what “{unseen[0]}” needs: train with side_info."
        )
    if len(parsed.parts) > 3:
        notes.append("Of a sequence I take the first three parts.")
    if len(parsed.parts) > 1:
        notes.append("The policy observes the time (observe_time), to know which part it is in.")
    return " ".join(notes)


# --- the environment, where none is named ---------------------------------------------------------

ALIASES = {
    "cheetah": "HalfCheetah", "cat": "HalfCheetah", "dog": "HalfCheetah", "horse": "HalfCheetah",
    "spider": "Ant", "quadruped": "Ant", "insect": "Ant", "crab": "Ant",
    "walker": "Walker2d", "biped": "Walker2d", "kangaroo": "Hopper",
    "human": "Humanoid", "person": "Humanoid", "man": "Humanoid", "woman": "Humanoid",
    "fish": "Swimmer", "snake": "Swimmer", "worm": "Swimmer", "swim": "Swimmer",
    "swimming": "Swimmer", "pole": "InvertedPendulum", "pendulum": "InvertedPendulum",
    "cartpole": "InvertedPendulum", "poles": "InvertedDoublePendulum",
    "double": "InvertedDoublePendulum", "arm": "Reacher", "fingertip": "Reacher",
    "pusher": "Pusher",
}  # fmt: skip
"""What people call these environments."""
PREFERRED = {
    "hop": "Hopper", "sway": "InvertedPendulum", "leave": "Pusher",
    **dict.fromkeys(RISING, "HumanoidStandup"), "balance": "InvertedPendulum",
    "reach": "Reacher", "push": "Pusher", "spin": "Ant", "turn": "Ant", "roll": "Ant",
}  # fmt: skip
"""The environment that shows a motion best, where none is named."""
DEFAULTS = ("HalfCheetah", "Ant")


def choose_environment(request: EnvironmentChoices) -> EnvironmentChoice:
    """One that is named or can do it, with the reason; None: the words are not known."""
    by_name = {env_id.rpartition("-v")[0] or env_id: env_id for env_id in request.environments}
    parsed = parse(request.prompt)
    named = _named(request.prompt, by_name)
    motions = {goal.motion for goal in parsed.goals if not goal.negated}
    if named == "Humanoid" and RISING & motions and "HumanoidStandup" in by_name:
        named = "HumanoidStandup"
    if named:
        return EnvironmentChoice(env_id=by_name[named], reason=f"the prompt names {named}")
    if not parsed.goals:
        return EnvironmentChoice(
            env_id=None, reason=f"The built-in author knows no motion in it. {PROVIDERS}"
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
    return EnvironmentChoice(env_id=None, reason=f"No environment here can {asked}. {PROVIDERS}")


def _named(prompt: str, by_name: Mapping[str, str]) -> str | None:
    text = prompt.lower()
    packed = re.sub(r"[^a-z0-9]", "", text)
    for name in sorted(by_name, key=len, reverse=True):
        whole = re.search(rf"\b{name.lower()}s?\b", text)
        if whole or (len(name) > 5 and name.lower() in packed):
            return name
    return None
