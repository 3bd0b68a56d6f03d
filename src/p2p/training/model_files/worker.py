"""Reads a model file in the sandbox, and leaves what the parent keeps of it in the folder."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from p2p.training.model_files.record import RobotModel, RobotOptions
from p2p.training.model_files.sources import ModelFileError


def main(payload: dict[str, Any], send: Callable[[bytes], None]) -> None:
    """Build what the payload says; send `done`, or an `error` for people."""
    try:
        done = build(Path(payload["folder"]), payload)
    except ModelFileError as error:
        send(json.dumps({"error": str(error)[:1000]}).encode())
    else:
        send(json.dumps({"done": done}).encode())


def build(folder: Path, payload: dict[str, Any]) -> dict[str, Any]:
    """Leave source/, record.json, model.mjb and facts.json in the folder."""
    from p2p.training.envs.registry import quiet_loading
    from p2p.training.model_files.compiler import compile_model
    from p2p.training.model_files.sources import collect, unpack

    if "copy" in payload:
        return rebuild(folder, Path(payload["copy"]))
    source, given, root = folder / "source", Path(payload["main"]), Path(payload["root"])
    if given.suffix.lower() == ".zip":
        root = folder / "unpacked"
        given = unpack(given, root)
    main = collect(given, root, source)
    options = read_options(given.with_suffix(".toml"))
    with quiet_loading():
        compiled = compile_model(main, source, payload["name"], options)
    (folder / "record.json").write_text(compiled.record.model_dump_json(indent=1))
    return save_compiled(folder, compiled.model)


def rebuild(folder: Path, copy: Path) -> dict[str, Any]:
    """The same of a copy: its record counts, and nothing is inferred anew."""
    from p2p.training.envs.registry import quiet_loading
    from p2p.training.model_files.compiler import compile_record

    for path in filter(Path.is_file, copy.rglob("*")):
        target = folder / path.relative_to(copy)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)  # and not its mode, which the sandbox does not let change
    record = RobotModel.model_validate_json((folder / "record.json").read_bytes())
    with quiet_loading():
        model = compile_record(folder / "source" / record.main, record)
    return save_compiled(folder, model)


def save_compiled(folder: Path, model: Any) -> dict[str, Any]:
    """Write the compiled model and its facts."""
    import mujoco

    from p2p.training.model_files.observing import observe_facts

    mujoco.mj_saveModel(model, str(folder / "model.mjb"), None)
    (folder / "facts.json").write_text(observe_facts(folder).model_dump_json())
    source = folder / "source"
    return {"files": sorted(str(p.relative_to(source)) for p in source.rglob("*") if p.is_file())}


def read_options(path: Path) -> RobotOptions:
    """Return what the TOML beside a model says; nothing where there is none."""
    from p2p.validation import describe_errors

    try:
        return RobotOptions.model_validate(tomllib.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return RobotOptions()
    except tomllib.TOMLDecodeError as error:
        raise ModelFileError(f"{path.name} is not TOML: {error}") from None
    except UnicodeDecodeError:
        raise ModelFileError(f"{path.name} is not UTF-8 text: save it as UTF-8") from None
    except ValueError as error:
        known = list(RobotOptions.model_fields)
        raise ModelFileError(f"{path.name}: {describe_errors(error, known=known)}") from None
