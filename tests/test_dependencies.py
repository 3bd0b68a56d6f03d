"""What is imported is declared, in ranges with an end."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from itertools import chain
from pathlib import Path

from p2p.training.engines.table import ENGINES

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
IMPORT_NAMES = {
    "PIL": "pillow",
    "dotenv": "python_dotenv",
    "typing_extensions": "pydantic",  # whose models need its TypedDict below Python 3.12
    "httpx2": "pydantic_ai_slim",  # of its extras openai and anthropic
    "isaaclab_newton": "isaaclab",
    "isaaclab_tasks": "isaaclab",
    "openai": "pydantic_ai_slim",  # its extra of that name
    "pydantic_ai": "pydantic_ai_slim",
    "pydantic_core": "pydantic",
    "rsl_rl": "rsl_rl_lib",
    "tensordict": "rsl_rl_lib",
    "warp": "warp_lang",
    "triton": "torch",  # torch for CUDA pins it; kernels are used only where it is there
}
"""Where a distribution is not called as it is imported, or comes with another one."""


def distributions(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9._-]", text)[0] for text in requirements}


def importable(requirements: list[str]) -> set[str]:
    return {name.replace("-", "_") for name in distributions(requirements)}


IN_ENGINES = importable([text for engine in ENGINES.values() for text in engine.requirements])
"""What the modules that run in an engine's own Python find there."""


def test_everything_imported_is_declared() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        declared = importable(PROJECT["dependencies"])
        if "unstable" in path.parts:
            declared |= importable(EXTRAS["selfplay"]) | importable(EXTRAS["vllm"])
        if "scheduler" in path.parts:
            declared |= importable(EXTRAS["cluster"])
        if "training/engines/" in path.as_posix() or path.name == "rsl_rl_trainer.py":
            declared |= IN_ENGINES
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            else:
                continue
            for module in modules:
                top = module.split(".")[0]
                if top in sys.stdlib_module_names or top in ("p2p", "unstable"):
                    continue
                assert IMPORT_NAMES.get(top, top) in declared, f"{path}: {top} is not declared"


def test_every_range_has_an_upper_bound() -> None:
    for requirement in (*PROJECT["dependencies"], *chain.from_iterable(EXTRAS.values())):
        assert re.search(r">=[\d.]+,<[\d.]+$", requirement), requirement
