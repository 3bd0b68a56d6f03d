"""Checkpoints for others: a whole model or an adapter, with a model card."""

from __future__ import annotations

import shutil
from pathlib import Path

from unstable.console import describe_evaluation
from unstable.dashboard.sources import RunFiles
from unstable.models import find_model
from unstable.run import RunFolder
from unstable.utils.files import new_folder
from unstable.utils.logging import quiet_transformers

CARD = """---
library_name: {library}
tags: [self-play, text-games]
---

# {name}

{model}, trained by self-play on {games}: {step} updates, seed {seed}.

- Prompt template `{template}`, action extraction `{extraction}`{boards}
- Sampled at temperature {temperature:g}, up to {max_tokens} tokens

```
{evaluations}
```
"""


def export_checkpoint(run: Path, checkpoint: Path, folder: Path, *, merge: bool) -> Path:
    """Write a run's checkpoint to a new folder; see `Run.export`."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists: name a new folder")
    found = find_model(checkpoint)
    with new_folder(folder, replace=False) as staged:
        if merge and found.adapter is not None:
            _merge(found.model, found.adapter, staged)
        else:
            shutil.copytree(checkpoint, staged, dirs_exist_ok=True)
        card = write_card(run, found.step, "transformers" if merge else "peft")
        (staged / "README.md").write_text(card, encoding="utf-8")
    return folder


def write_card(run: Path, step: int, library: str) -> str:
    """Return the model card of a checkpoint, with its own evaluations."""
    config = RunFolder(run).config()
    games, sampling = config.games, config.sampling
    rows = [row for row in RunFiles(run).evaluations() if row["ckpt_uid"] == f"ckpt-{step}"]
    return CARD.format(
        library=library,
        name=config.name,
        model=config.model,
        games=", ".join(env_id for env_id, *_ in games.train),
        step=step,
        seed=config.seed,
        template=games.train[0][2],
        extraction=games.action_extraction,
        boards=", short boards (`unstable.games.rules`)" * games.compact_views,
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        evaluations="\n".join(map(describe_evaluation, rows)) or "not evaluated",
    )


def _merge(model: str, adapter: str, folder: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quiet_transformers()
    base = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    merged = PeftModel.from_pretrained(base, adapter).merge_and_unload()
    merged.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
