"""Few ids for many adapters, and those that an engine must not get."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from unstable.engines import EngineError
from unstable.engines.adapters import CONFIG, WEIGHTS, check_adapter
from unstable.engines.vllm_engine import AdapterSlots, LoadedAdapter

FILES = (CONFIG, WEIGHTS)
KEY = "base_model.model.layers.0.lora_{}.weight"


class Loader:
    """Remembers what is in which slot."""

    def __init__(self) -> None:
        self.inside: dict[int, str] = {}
        self.loads = 0
        self.fails = False
        self.gate: asyncio.Event | None = None

    async def __call__(self, adapter: LoadedAdapter) -> None:
        if self.gate:
            await self.gate.wait()
        if self.fails:
            raise EngineError("broken")
        self.loads += 1
        self.inside[adapter.slot] = adapter.name


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    folders = [tmp_path / f"adapter-{i}" for i in range(10)]
    for folder in folders:
        folder.mkdir()
        for name in FILES:
            (folder / name).write_text(name)
    return [str(folder) for folder in folders]


@pytest.fixture
def run() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


async def use(slots: AdapterSlots, folder: str) -> LoadedAdapter:
    async with slots.hold(folder) as adapter:
        return adapter


def test_slot_ids_are_bounded_and_held_by_one_adapter(
    run: asyncio.Runner, folders: list[str]
) -> None:
    load = Loader()
    slots = AdapterSlots(3, load)

    async def one(folder: str) -> None:
        async with slots.hold(folder) as adapter:
            assert adapter.folder == folder
            for _ in range(3):
                assert load.inside[adapter.slot] == adapter.name
                await asyncio.sleep(0)

    async def many() -> None:
        await asyncio.gather(*(one(folders[i * 7 % 10]) for i in range(100)))

    run.run(many())
    assert set(load.inside) == {1, 2, 3}


def test_least_recently_used_adapter_is_evicted(run: asyncio.Runner, folders: list[str]) -> None:
    load = Loader()
    slots = AdapterSlots(2, load)
    for folder in (folders[0], folders[1], folders[0], folders[2], folders[0]):
        run.run(use(slots, folder))
    assert load.loads == 3


@pytest.mark.parametrize("name", FILES)
def test_rewritten_folder_is_another_adapter(
    run: asyncio.Runner, folders: list[str], name: str
) -> None:
    load = Loader()
    slots = AdapterSlots(2, load)
    before = run.run(use(slots, folders[0]))
    (Path(folders[0]) / name).write_text("other content")
    after = run.run(use(slots, folders[0]))
    assert load.loads == 2
    assert before.name != after.name
    assert before.slot != after.slot  # some request may still be answered with the old one


def test_failed_load_frees_its_slot(run: asyncio.Runner, folders: list[str]) -> None:
    load = Loader()
    slots = AdapterSlots(1, load)
    load.fails = True
    for folder in folders:
        with pytest.raises(EngineError, match="broken"):
            run.run(use(slots, folder))
    load.fails = False
    assert run.run(use(slots, folders[0])).slot == 1


def test_waiting_requests_get_slots_in_order(run: asyncio.Runner, folders: list[str]) -> None:
    slots = AdapterSlots(1, Loader())
    order: list[str] = []

    async def one(folder: str) -> None:
        async with slots.hold(folder):
            order.append(folder)
            for _ in range(5):
                await asyncio.sleep(0)

    async def many() -> None:
        asked = [folders[0], folders[0], folders[1], *[folders[0]] * 20]
        await asyncio.gather(*map(one, asked))
        assert order == asked

    run.run(many())


@pytest.mark.parametrize("where", ["loading", "waiting for a slot", "waiting for its turn"])
def test_cancelled_request_leaves_the_queue(
    run: asyncio.Runner, folders: list[str], where: str
) -> None:
    load = Loader()
    slots = AdapterSlots(1, load)

    async def story() -> None:
        if where == "loading":
            load.gate = asyncio.Event()
            cancelled = [asyncio.create_task(use(slots, folders[1]))]
            await asyncio.sleep(0.01)
            cancelled[0].cancel()
            load.gate.set()
        else:
            async with slots.hold(folders[0]):
                cancelled = [asyncio.create_task(use(slots, folder)) for folder in folders[1:3]]
                await asyncio.sleep(0.01)
                cancelled[where == "waiting for its turn"].cancel()
                await asyncio.sleep(0.01)
        results = await asyncio.gather(*cancelled, return_exceptions=True)
        assert sum(isinstance(result, asyncio.CancelledError) for result in results) == 1
        assert (await use(slots, folders[3])).slot == 1

    run.run(story())


# --- adapters that do not fit ---------------------------------------------------------------


@pytest.fixture
def layers() -> nn.Module:
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
def test_adapter_of_another_model_is_refused(
    layers: nn.Module, tmp_path: Path, fault: dict[str, int], says: str
) -> None:
    with pytest.raises(EngineError, match=f"{tmp_path}.*{says}"):
        check_adapter(save(tmp_path, **fault), layers)


def test_torn_adapter_file_is_refused(layers: nn.Module, tmp_path: Path) -> None:
    save(tmp_path)
    file = tmp_path / WEIGHTS
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(EngineError, match=f"cannot read the adapter at {tmp_path}"):
        check_adapter(str(tmp_path), layers)
