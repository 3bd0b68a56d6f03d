"""Every name of the public interface, as public_interface.toml lists them, is where it is said."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from p2p.contracts import EntityMetadata, RewardSpec, SessionConfig
from p2p.session.iteration_record import IterationRecord, SessionRecord
from p2p.training.simulator import get_simulator

NAMES: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("public_interface.toml").read_text()
)


def named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def members(cls: type) -> set[str]:
    fields = getattr(cls, "model_fields", getattr(cls, "__dataclass_fields__", ()))
    return {*dir(cls), *fields}


def test_modules_have_their_names() -> None:
    lacking = {
        module: set(names) - set(dir(import_module(module)))
        for module, names in NAMES["modules"].items()
    }
    assert not {module: names for module, names in lacking.items() if names}


def test_classes_have_their_members() -> None:
    lacking = {cls: set(names) - members(named(cls)) for cls, names in NAMES["members"].items()}
    assert not {cls: names for cls, names in lacking.items() if names}


def test_schemas_are_their_contracts() -> None:
    for schema, contract in NAMES["mirrors"].items():
        assert named(schema) is named(contract), schema


@pytest.mark.parametrize("program", NAMES["flags"])
def test_a_program_has_its_flags(program: str) -> None:
    command = [sys.executable, "-m", program, "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert set(NAMES["flags"][program]) <= set(re.findall(r"--[a-z-]+", shown.stdout))


def test_records_are_written_from_mappings_and_read_like_them(tmp_path: Path) -> None:
    session = SessionRecord(tmp_path)
    session.save_metadata({"alias": "x", "tags": ["a"]})
    assert session.read_metadata() == EntityMetadata(alias="x", tags=("a",))
    assert session.read_metadata()["alias"] == "x"
    iteration = IterationRecord(tmp_path / "iter_1")
    iteration.save_reward_spec({"latex": "r = v"})
    spec = iteration.read_reward_spec()
    assert (spec["latex"], spec.get("terms"), "latex" in spec) == ("r = v", {}, True)
    assert {**spec} == dict(spec) == RewardSpec(latex="r = v").model_dump()
    assert (spec.get("x", 1), "x" in spec, "x" in SessionConfig.model_fields) == (1, False, False)
    with pytest.raises(KeyError, match="x"):
        spec["x"]
    with pytest.raises(ValueError, match="latx"):
        iteration.save_reward_spec({"latx": "r = v"})


def test_the_simulator_needs_no_name() -> None:
    assert get_simulator().engine_name == "mujoco"
