"""Adapters that an engine must not get."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from unstable.engines.adapters import WEIGHTS, check_adapter
from unstable.engines.protocol import EngineError

KEY = "base_model.model.layers.0.lora_{}.weight"


@pytest.fixture
def model() -> nn.Module:
    with torch.device("meta"):
        return nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(6, 5)])})


def save(folder: Path, inputs: int = 6, outputs: int = 5, layer: int = 0, fill: float = 1) -> str:
    key = KEY.replace("0", str(layer))
    down, up = torch.full((2, inputs), fill), torch.ones(outputs, 2)
    save_file({key.format("A"): down, key.format("B"): up}, folder / WEIGHTS)
    return str(folder)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"inputs": 5}, "lora_A.weight is of another size"),
        ({"outputs": 6}, "lora_B.weight is of another size"),
        ({"layer": 1}, "no layer for base_model.model.layers.1"),
        ({"fill": float("nan")}, "not finite"),
        ({"fill": float("inf")}, "not finite"),
    ],
)
def test_another_one_is_refused_by_name(
    model: nn.Module, tmp_path: Path, fault: dict[str, int], says: str
) -> None:
    with pytest.raises(EngineError, match=f"{tmp_path}.*{says}"):
        check_adapter(save(tmp_path, **fault), model)


def test_a_torn_file_is_refused(model: nn.Module, tmp_path: Path) -> None:
    save(tmp_path)
    file = tmp_path / WEIGHTS
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(EngineError, match=f"cannot read the adapter at {tmp_path}"):
        check_adapter(str(tmp_path), model)
