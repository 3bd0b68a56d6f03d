"""`p2p envs`, `p2p rewards`, `p2p doctor`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cli_runner import Cli

from p2p.commands.catalogue import _wrap
from p2p.rewards import list_rewards
from p2p.sandbox import Layers


def test_envs_lists_all_with_their_sizes(p2p: Cli) -> None:
    found = {spec["env_id"]: spec for spec in p2p("envs", "--json").json}
    assert len(found["Ant-v5"]["observation"]) == 105
    assert {"HalfCheetah-v5", "Pusher-v5", "InvertedDoublePendulum-v5"} <= set(found)
    table = p2p("envs").out
    assert all(env_id in table for env_id in found)
    assert max(map(len, table.splitlines())) <= 80


def test_one_environment_in_full(p2p: Cli) -> None:
    assert p2p("envs", "Hopper-v5", "--json").json["actions"][0]["name"] == "thigh_joint"
    text = p2p("envs", "Hopper-v5").out
    for word in ("rootz_position", "thigh_joint", "x_velocity", "obs[..., index]", "camera",
                 "foot_height[..., f] (m)", "Foot 0: foot, body 4"):  # fmt: skip
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("envs", "hopper-v5"), "did you mean Hopper-v5"),
        (("envs", "no_such_package:Robot-v0"), "no_such_package:Robot-v0"),
        (("envs", "CartPole-v1"), "CartPole-v1"),
        (("rewards", "ant_spinn"), "did you mean ant_spin?"),
        (("rewards", "--env", "ant-v5"), "did you mean Ant-v5"),
    ],
)
def test_an_unknown_name_is_told_with_what_is_near(
    p2p: Cli, arguments: tuple[str, ...], told: str
) -> None:
    outcome = p2p(*arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert told in outcome.error
    assert told in p2p(*arguments, "--json").json["error"]


def test_long_lines_of_an_environment_are_continued_below_their_beginning() -> None:
    text = f"Joints\n- knee: {'word ' * 20}\n    shape: {'word ' * 20}"
    lines = _wrap(text).splitlines()
    assert max(map(len, lines)) <= 80
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 0, 2, 4, 4]


def test_rewards_are_listed_and_printed_as_they_are(p2p: Cli) -> None:
    names = {item.name for item in list_rewards()}
    assert {item["name"] for item in p2p("rewards", "--json").json} == names
    text = p2p("rewards").out
    assert all(name in text for name in names)
    one = list_rewards("Ant-v5")[0]
    assert p2p("rewards", one.name).out == one.read()
    assert p2p("rewards", one.name, "--json").json["source"] == one.read()
    assert {item["env_id"] for item in p2p("rewards", "-e", "Ant-v5", "--json").json} == {"Ant-v5"}


def test_doctor_looks_at_everything(p2p: Cli) -> None:
    outcome = p2p("doctor", "--json")
    found = {item["name"]: item for item in outcome.json}
    assert set(found) == {"packages", "machine", "sandbox", "gpu", "rendering", "model", "runs"}
    assert outcome.status == (0 if all(i["ok"] for i in outcome.json if i["needed"]) else 1)


@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_doctor_says_what_works_without_a_sandbox(
    platform: str, p2p: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = Layers(landlock_abi=0, seccomp=True, namespaces=(), problem="no Landlock")
    monkeypatch.setattr("p2p.sandbox.launch.layers", lambda: absent)
    monkeypatch.setattr("p2p.commands.doctor.sys", SimpleNamespace(platform=platform))
    found = {item["name"]: item for item in p2p("doctor", "--json").json}["sandbox"]
    assert not found["ok"]
    assert any("--unsafe-local" in line for line in found["details"])


def test_doctor_says_how_to_mend_a_folder_that_cannot_be_written(
    p2p: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from p2p.settings import get_settings

    monkeypatch.setenv("P2P_RUNS_DIR", "/proc/version/runs")
    get_settings.cache_clear()
    try:
        outcome = p2p("doctor")
    finally:
        monkeypatch.undo()
        get_settings.cache_clear()
    assert outcome.status == 1
    assert "P2P_RUNS_DIR" in outcome.out
