"""Checkpoints that a long run does not keep."""

from __future__ import annotations

from pathlib import Path

from small_run import learned_steps, new_run, small_model

from unstable.run.progress import best_evaluated
from unstable.run.start import start


def kept(run: Path) -> list[int]:
    folders = (run / "checkpoints").iterdir()
    return sorted(int(folder.name.removeprefix("iteration-")) for folder in folders)


def test_a_run_keeps_few_checkpoints_and_continues_from_them(tmp_path: Path) -> None:
    model = small_model(tmp_path / "model")
    config, folder = new_run(
        tmp_path / "run", model, keep_checkpoints=2, updates=7, games_per_update=2, eval_games=2,
        eval_every=3, pool={"sample_mode": {"mirror": 0.5, "ts-dist": 0.5}, "max_active_lora": 2},
    )  # fmt: skip
    result = start(config, folder, model, lambda _: None)
    left = kept(folder.path)
    assert {4, 6, 7} <= set(left)  # spread, newest
    assert len(left) < 7
    assert result.checkpoint == str(folder.path / "checkpoints" / "iteration-7")

    longer = config.model_copy(update={"updates": 10})
    result = start(longer, folder, model, lambda _: None)
    assert learned_steps(folder.path) == [*range(1, 11)]
    assert result.counts["failed"] == 0
    assert {8, 9, 10} <= set(kept(folder.path))
    assert len(kept(folder.path)) < 9


def test_the_best_is_who_did_best_in_enough_games() -> None:
    rows = [
        {"ckpt_uid": uid, "env_id": env, "opponent": "x", "win_rate_low": low}
        for uid, env, low in (
            ("ckpt-1", "A", 0.2), ("ckpt-2", "A", 0.5), ("ckpt-3", "A", 0.4), ("ckpt-1", "B", 0.1),
            ("ckpt-4", "B", 0.1),
        )
    ]  # fmt: skip
    assert best_evaluated(rows) == ["ckpt-2", "ckpt-4"]
    assert best_evaluated([]) == []
