"""How good a checkpoint is: `unstable eval`, and what a best response gains."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from small_run import new_run

from unstable.actor import VLLMActor
from unstable.cli import main
from unstable.console import describe_evaluation
from unstable.dashboard.sources import RunFiles
from unstable.engines import Sampling
from unstable.games import GameRunner
from unstable.games.rules import compact_view, legal_moves
from unstable.games.solve import (
    Deal,
    Decision,
    Policy,
    best_response_value,
    exploitability,
    list_positions,
    make_game_tree,
)
from unstable.run.start import start
from unstable.tiny import WarmUp, make_tiny

SETTINGS: dict[str, Any] = {
    "updates": 2,
    "seed": 5,
    "eval_games": 12,
    "sampling": {"temperature": 0.6, "top_p": 1.0, "max_tokens": 4},
    "games": {
        "evaluate": [["TicTacToe-v0-train", 2, "bare"], ["Nim-v0-train", 2, "bare"]],
        "opponent": ["random-legal", "first-checkpoint"],
    },
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Warm enough to win some games: where all are lost, numbers are easily the same."""
    games = [env_id for env_id, *_ in SETTINGS["games"]["evaluate"]]
    plan = WarmUp(games=60, steps=80)
    model = str(make_tiny(tmp_path_factory.mktemp("models") / "warm", games, warm_up=plan))
    config, folder = new_run(tmp_path_factory.mktemp("runs") / "run", model, **SETTINGS)
    result = start(config, folder, model, lambda _: None)
    return folder.path, [dict(row) for row in result.evaluations]


def rows(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    with pytest.raises(SystemExit) as left:
        main([*map(str, arguments), "--json"])
    assert left.value.code == 0
    measured: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert all(row.pop("failed") == 0 and not row.pop("error") for row in measured)
    return measured


def test_evaluate_repeats_the_runs_own_numbers(
    trained: tuple[Path, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    run, own = trained
    newest = [row for row in own if row["ckpt_uid"] == "ckpt-2"]
    assert len(newest) == 4
    assert any(row["win_rate"] > 0 for row in newest)
    assert rows(capsys, "eval", run) == newest
    assert rows(capsys, "evaluate", run / "checkpoints" / "iteration-2") == newest


def test_evaluate_options_override_the_runs(
    trained: tuple[Path, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    run, own = trained
    (row,) = rows(
        capsys, "eval", run, "--game", "Nim-v0-train", "--opponent", "random-legal", "--games", 20
    )
    assert (row["env_id"], row["games"]) == ("Nim-v0-train", 20)
    newest = [one for one in own if one["ckpt_uid"] == "ckpt-2"]
    other = ("--temperature", 1, "--top-p", 1, "--seed", 6, "--max-tokens", 6)
    assert rows(capsys, "eval", run, *other) != newest


KUHN = "KuhnPoker-v0-train"


@pytest.fixture(scope="module")
def root() -> Deal:
    return make_game_tree(KUHN)


def policy_of(root: Deal, rule: Callable[[tuple[str, ...]], dict[str, float]]) -> Policy:
    return {position: rule(moves) for position, moves in list_positions(root).items()}


def some_policy(root: Deal, seed: int, legal: float = 1.0) -> Policy:
    rng = random.Random(seed)

    def rule(moves: tuple[str, ...]) -> dict[str, float]:
        first = rng.random()
        return {moves[0]: legal * first, moves[1]: legal * (1 - first)}

    return policy_of(root, rule)


def value(node: Decision | Deal | float, policies: tuple[Policy, Policy]) -> float:
    """The expected reward of seat 0, by going through every line."""
    if isinstance(node, Deal):
        return fmean(value(one, policies) for _, one in node.deals)
    if isinstance(node, float):
        return node
    chances = policies[node.seat][node.position]
    total = sum(
        chances.get(move, 0.0) * value(after, policies)
        for move, after in zip(node.moves, node.after, strict=True)
    )
    return total + (1 - sum(chances.values())) * (-1.0 if node.seat == 0 else 1.0)


def test_exploitability_of_always_and_never_folding(root: Deal) -> None:
    """In TextArena's game a bet costs nothing, so that folding only loses."""
    bold = policy_of(root, lambda moves: {moves[1]: 1.0})
    assert set(next(iter(bold.values()))) <= {"[bet]", "[call]"}
    assert exploitability(root, bold) == pytest.approx(0.0)
    assert exploitability(root, policy_of(root, lambda moves: {moves[0]: 1.0})) == pytest.approx(1)
    assert exploitability(root, policy_of(root, lambda _: {})) == pytest.approx(1.0)


def test_no_strategy_does_better_than_the_best_response(root: Deal) -> None:
    policy = some_policy(root, 1, legal=0.95)
    best = [best_response_value(root, policy, seat) for seat in (0, 1)]
    for seed in range(4):
        rng = random.Random(seed)
        pure = policy_of(root, lambda moves: {rng.choice(moves): 1.0})  # noqa: B023
        assert value(root, (pure, policy)) <= best[0] + 1e-9
        assert -value(root, (policy, pure)) <= best[1] + 1e-9
    bold = policy_of(root, lambda moves: {moves[1]: 1.0})
    # Betting and calling is a best response to those who fold: there its value is reached.
    folds = policy_of(root, lambda moves: {moves[0]: 0.5, moves[1]: 0.5})
    assert value(root, (bold, folds)) == pytest.approx(best_response_value(root, folds, 0))
    assert exploitability(root, some_policy(root, 2)) > 0.05


def test_game_tree_has_the_value_of_played_games(root: Deal) -> None:
    """Games that are played have the value that the tree says, within what chance allows."""
    policies = some_policy(root, 3), some_policy(root, 4)
    view, rewards = compact_view(KUHN), []
    for seed in range(600):
        rng, game = random.Random(seed), GameRunner(KUHN, 2, seed, view=view)
        while not game.done:
            turn = game.observe()
            chances = policies[turn.seat][turn.observation]
            assert set(chances) == set(legal_moves(KUHN, game.env, rng))
            game.step(rng.choices(list(chances), list(chances.values()))[0])
        rewards.append(game.rewards[0])
    assert fmean(rewards) == pytest.approx(value(root, policies), abs=4 / math.sqrt(len(rewards)))


def test_engine_scores_whole_answers(tiny: Path) -> None:
    actor = VLLMActor({"model_name": str(tiny), "temperature": 1.0, "top_p": 1.0})
    end = actor.tokenizer.eos_token_id

    async def ask() -> None:
        drawn = await actor.generate("0123", max_tokens=3, seed=1)
        again = await actor.engine.generate(drawn.prompt_ids, Sampling(forced=drawn.token_ids))
        assert again.token_ids == drawn.token_ids
        assert again.logprobs == pytest.approx(drawn.logprobs, abs=1e-5)
        tokens = (*actor.tokenizer.encode("bet", add_special_tokens=False), end)
        step_by_step = [
            (await actor.engine.generate((*drawn.prompt_ids, *tokens[:i]), Sampling(forced=(t,))))
            for i, t in enumerate(tokens)
        ]
        logprob = sum(one.logprobs[0] for one in step_by_step)
        _, score = await actor.score("0123", ["check", "bet"])
        assert score == pytest.approx(math.exp(logprob), rel=1e-4)
        await actor.close()

    asyncio.run(ask())


def test_a_run_reports_both_opponents_and_the_exploitability(tmp_path: Path) -> None:
    model = str(make_tiny(tmp_path / "model", (KUHN,), warm_up=WarmUp(games=10, steps=4)))
    config, folder = new_run(
        tmp_path / "run", model, updates=1, eval_games=4,
        games={"train": [[KUHN, 2, "bare"]], "opponent": ["random-legal", "first-checkpoint"]},
    )  # fmt: skip
    before, *after = start(config, folder, model, lambda _: None).evaluations
    assert [(row["ckpt_uid"], row["opponent"], row["games"]) for row in (before, *after)] == [
        ("ckpt--1", "random-legal", 4),
        ("ckpt-1", "random-legal", 4),
        ("ckpt-1", "first-checkpoint", 4),
    ]
    assert 0 < before["exploitability"] <= 1
    assert after[0]["exploitability"] == after[1]["exploitability"] != before["exploitability"]
    said = f"exploitability {before['exploitability']:.3f}"
    assert said in describe_evaluation(before)
    lines = map(json.loads, (folder.path / "metrics.jsonl").read_text().splitlines())
    metrics = {name: value for line in lines for name, value in line.items()}
    assert metrics[f"evaluation-{KUHN}/Exploitability"] == after[0]["exploitability"]
    assert metrics[f"evaluation-{KUHN}/Games"] == 4
    assert metrics[f"evaluation-{KUHN} against first-checkpoint/Games"] == 4
    view = RunFiles(folder.path).fetch()
    assert [rate.exploitability for rate in view.win_rates] == [after[0]["exploitability"]] * 2
    assert view.win_rates[0].history[0].exploitability == before["exploitability"]
