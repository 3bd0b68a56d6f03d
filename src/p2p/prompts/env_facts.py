"""The facts of a live environment as sections of a prompt, no longer than they need to be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from p2p.contracts import FAILURE_TAGS
from p2p.training.specs import spec_text

if TYPE_CHECKING:
    from p2p.training.env_spec import EnvSpec, ObservationEntry

_CELL = re.compile(r"(\w+)\[(\d+), (\d+)\]")


def overview(spec: EnvSpec) -> str:
    """The robot, its time step, its episodes and what `info` tells of a step."""
    horizon = spec.max_episode_steps or "none"
    lines = [
        f"{spec.env_id}. {spec.description}.",
        f"One step is {spec.dt:g} s; horizon {horizon} steps; the episode {spec.termination}.",
        f"Gravity {spec.gravity[2]:g} m/s^2 along z; +z is up, +x is forward.{_fluid(spec)}",
        "info after a step:",
        *(f"- {name}: {meaning}" for name, meaning in spec.info_keys.items()),
    ]
    if not spec.info_keys:
        lines[-1] = "info after a step is empty."
    return "\n".join(lines)


def _fluid(spec: EnvSpec) -> str:
    density, viscosity = spec.fluid
    if not density and not viscosity:
        return ""
    return f" It moves in a fluid: density {density:g} kg/m^3, viscosity {viscosity:g} Pa s."


def body_facts(spec: EnvSpec) -> str:
    """Overview, named quantities, joints with the meaning of their sign, state and shapes."""
    parts = (
        overview(spec),
        spec_text.quantity_table(spec),
        spec_text.joint_semantics(spec),
        spec_text.body_info(spec),
    )
    return "\n\n".join(parts)


def all_facts(spec: EnvSpec) -> str:
    """Body facts, and the observation and the action index by index."""
    parts = (body_facts(spec), observation_table(spec), spec_text.action_table(spec))
    return "\n\n".join(parts)


def observation_table(spec: EnvSpec) -> str:
    """The observation, one line for each number; for arrays over all bodies, one for the array."""
    full = spec_text.observation_table(spec).splitlines()
    head, entries, tail = full[:2], full[2 : 2 + spec.obs_dim], full[2 + spec.obs_dim :]
    lines: list[str] = []
    for block in _blocks(spec.observation):
        start, stop = block[0].index, block[-1].index + 1
        text = _array_text(block)
        lines += entries[start:stop] if text is None else [text]
    return "\n".join((*head, *lines, *tail))


def _blocks(entries: Sequence[ObservationEntry]) -> Iterator[list[ObservationEntry]]:
    """Neighbours that come from cells of the same array."""

    def array(entry: ObservationEntry) -> str:
        cell = _CELL.fullmatch(entry.source or "")
        return cell[1] if cell else ""

    for name, block in groupby(entries, key=array):
        if name:
            yield list(block)
        else:
            yield from ([entry] for entry in block)


def _array_text(block: list[ObservationEntry]) -> str | None:
    """One line for a block that runs through all columns of consecutive bodies; else None."""
    cells = [_CELL.fullmatch(entry.source or "") for entry in block]
    if len(block) < 12 or None in cells:
        return None
    places = [(int(cell[2]), int(cell[3])) for cell in cells if cell]
    first, width = places[0][0], max(column for _, column in places) + 1
    if places != [(first + i // width, i % width) for i in range(len(places))]:
        return None
    name, start = cells[0][1] if cells[0] else "", block[0].index
    meanings = (entry.description.partition(": ")[2] for entry in block[:width])
    units = (f" ({entry.unit})" if entry.unit else "" for entry in block[:width])
    columns = "; ".join(
        f"{k}: {text}{unit}" for k, (text, unit) in enumerate(zip(meanings, units, strict=True))
    )
    return (
        f"{start} to {block[-1].index} | {name}[b, k] at index {start} + {width} * (b - {first}) "
        f"+ k, for bodies b = {first} to {places[-1][0]} | k = {columns}"
    )


def tags_text() -> str:
    """The controlled list of failure tags, each with its meaning."""
    return "; ".join(f"{tag} ({meaning})" for tag, meaning in FAILURE_TAGS.items())


def listing(entries: Mapping[str, str]) -> str:
    return "\n".join(f"- {name}: {meaning}" for name, meaning in entries.items())
