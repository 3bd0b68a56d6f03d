"""A run that trains all of the model instead of an adapter."""

from __future__ import annotations

import json
from pathlib import Path

from small_run import learned_steps, new_run, small_model

from unstable.commands.models import find_model
from unstable.run.start import start


def test_whole_models_are_trained_played_and_continued(tmp_path: Path) -> None:
    model = small_model(tmp_path / "model")
    config, folder = new_run(
        tmp_path / "run", model, updates=2,
        learner={"options": {"full_parameters": True}},
        pool={"sample_mode": {"mirror": 0.5, "lagged": 0.5}},
    )  # fmt: skip
    result = start(config, folder, model, lambda _: None)
    assert result.counts["failed"] == result.counts["eval_failed"] == 0
    assert result.checkpoint is not None
    found = find_model(Path(result.checkpoint))
    assert (found.model, found.adapter) == (result.checkpoint, None)
    weights = [Path(at, "model.safetensors").read_bytes() for at in (model, result.checkpoint)]
    assert weights[0] != weights[1]

    longer = config.model_copy(update={"updates": 3})
    result = start(longer, folder, model, lambda _: None)
    assert result.counts["failed"] == 0
    assert learned_steps(folder.path) == [1, 2, 3]
    state = folder.states()[-1]
    assert not json.loads((state / "buffer.json").read_text())["store"]["whole"]  # all was learned
    played = (folder.path / "games" / "train.jsonl").read_text().splitlines()
    versions = {p["version"] for line in played for p in json.loads(line)["players"]}
    assert {1, 2} <= versions
