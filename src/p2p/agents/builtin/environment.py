"""Which body can do what was asked: named in the sentence, else the first that can."""

from __future__ import annotations

import re

from p2p.agents.builtin.body import body_of
from p2p.agents.builtin.criteria import PROVIDERS, bind
from p2p.agents.builtin.grammar import Parsed, parse
from p2p.agents.requests import EnvironmentChoice, EnvironmentChoices

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
"""What people call these bodies."""

PREFERRED = {
    "hop": ("Hopper",), "get_up": ("HumanoidStandup",), "balance": ("InvertedPendulum",),
    "reach": ("Reacher",), "push": ("Pusher",), "spin": ("Ant",), "turn": ("Ant",),
    "roll": ("Ant",),
}  # fmt: skip
"""The body that shows a motion best, where no body is named."""
DEFAULTS = ("HalfCheetah", "Ant")


def choose_environment(request: EnvironmentChoices) -> EnvironmentChoice:
    """An environment whose body can do it, with the reason; None: the words are not known."""
    by_name = {env_id.rpartition("-v")[0] or env_id: env_id for env_id in request.environments}
    parsed = parse(request.prompt)
    named = _named(request.prompt, by_name)
    motions = {goal.motion for goal in parsed.goals if not goal.negated}
    if named == "Humanoid" and "get_up" in motions and "HumanoidStandup" in by_name:
        named = "HumanoidStandup"
    if named:
        return EnvironmentChoice(env_id=by_name[named], reason=f"the sentence names {named}")
    if not parsed.goals:
        return EnvironmentChoice(
            env_id=None, reason=f"The built-in author knows no motion in it. {PROVIDERS}"
        )
    called = _called(request.prompt)
    if "Humanoid" in called and "get_up" in motions:
        called = ["HumanoidStandup", *called]
    wanted = [name for motion in motions for name in PREFERRED.get(motion, ())]
    candidates = [*called, *wanted, *DEFAULTS, *by_name]
    for name in dict.fromkeys(candidates):
        if name in by_name and _can(parsed, by_name[name]):
            return EnvironmentChoice(env_id=by_name[name], reason=f"{name} can {_said(parsed)}")
    return EnvironmentChoice(env_id=None, reason=f"No body here can {_said(parsed)}. {PROVIDERS}")


def _named(prompt: str, by_name: dict[str, str]) -> str | None:
    text = prompt.lower()
    packed = re.sub(r"[^a-z0-9]", "", text)
    for name in sorted(by_name, key=len, reverse=True):
        whole = re.search(rf"\b{name.lower()}s?\b", text)
        if whole or (len(name) > 5 and name.lower() in packed):
            return name
    return None


def _called(prompt: str) -> list[str]:
    """The bodies that some word of the sentence is another name for."""
    words = set(re.findall(r"[a-z]+", prompt.lower()))
    found = [name for alias, name in ALIASES.items() if alias in words]
    return sorted(found, key=lambda name: name != "InvertedDoublePendulum")


def _can(parsed: Parsed, env_id: str) -> bool:
    sheet = bind(parsed, body_of(env_id))
    return not sheet.cannot and any(c.category == "task" for c in sheet.found)


def _said(parsed: Parsed) -> str:
    return ", then ".join(
        " and ".join(" ".join(goal.words) for goal in part) for part in parsed.parts
    )
