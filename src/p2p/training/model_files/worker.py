"""Reads a model file in the sandbox, and leaves what the parent keeps of it in the folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from p2p.training.model_files.sources import ModelFileError


def main(payload: dict[str, Any], send: Callable[[bytes], None]) -> None:
    """Compile `main` of `root` with `wishes`; send `done`, or an `error` for people."""
    try:
        done = build(Path(payload["folder"]), payload)
    except ModelFileError as error:
        send(json.dumps({"error": str(error)[:1000]}).encode())
    else:
        send(json.dumps({"done": done}).encode())


def build(folder: Path, payload: dict[str, Any]) -> dict[str, Any]:
    import mujoco

    from p2p.training.envs.registry import quiet_loading
    from p2p.training.model_files.compiler import compile_model
    from p2p.training.model_files.observing import observe_facts
    from p2p.training.model_files.sources import collect

    source = folder / "source"
    main = collect(Path(payload["main"]), Path(payload["root"]), source)
    with quiet_loading():
        compiled = compile_model(main, source, payload["name"])
    (folder / "record.json").write_text(compiled.record.model_dump_json(indent=1))
    mujoco.mj_saveModel(compiled.model, str(folder / "model.mjb"), None)
    facts = observe_facts(folder)
    (folder / "facts.json").write_text(facts.model_dump_json())
    return {"files": sorted(str(p.relative_to(source)) for p in source.rglob("*") if p.is_file())}
