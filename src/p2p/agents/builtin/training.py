"""Training settings that a task needs beside those of its environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p2p.agents.builtin.goals import Parsed
from p2p.agents.builtin.morphology import Morphology, morphology_of
from p2p.training.hp_presets import quick_config

SEQUENCE: Mapping[str, Any] = {"observe_time": True}
"""Of what is done in parts, one after the other: the policy has to know which part it is in."""
LOSABLE_SECONDS: Mapping[str, float] = {"reared": 7.5, "flip": 7.5}
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
    """What the words of a prompt say about its training, whoever wrote the criteria."""
    model = morphology_of(env_id)
    return training_for(model.parse(prompt), model)


def training_for(parsed: Parsed, model: Morphology) -> dict[str, Any]:
    """Fields of TrainConfig for what is asked of this environment."""
    motions = [goal.motion for goal in parsed.goals if not goal.negated]
    settings: dict[str, Any] = {}
    for motion in motions:
        settings |= SETTINGS.get(motion, {})
    if len(parsed.parts) > 1:
        settings |= SEQUENCE
    elif len(model.poles) > 1:
        settings["training_horizon"] = round(STARTS_SECONDS / model.spec.dt)
    elif not model.may_end_early:
        for seconds in (LOSABLE_SECONDS[motion] for motion in motions if motion in LOSABLE_SECONDS):
            settings["training_horizon"] = min(round(seconds / model.spec.dt), model.horizon)
    longer = max((LONGER.get(motion, 1.0) for motion in motions), default=1.0)
    if longer > 1:
        steps = quick_config(model.spec.env_id).total_timesteps
        settings["total_timesteps"] = round(steps * longer)
    return settings
