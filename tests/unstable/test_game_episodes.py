"""One game: what is played, what is kept, and the transcript that people can step through."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from collector_run import Run
from instant_actor import END, InstantActor, board_of, empty_cell, listed_move, nonsense

from unstable import writers
from unstable.actor import ActorPool
from unstable.collector import TRANSCRIBED
from unstable.core import AgentSpec, EpisodeResult, PlaySpec, Trajectory
from unstable.engines import EngineError
from unstable.episodes import PlayerFactory, play_episode
from unstable.games import GameError, GameRunner
from unstable.trackers import Tracker
from unstable.writers import Transcripts, read_games

ME = AgentSpec("checkpoint", "adapters/3", "qwen3-zs", version=3)
RANDOM = AgentSpec("fixed", "random-legal", "qwen3-zs")
ENV = "TicTacToe-v0-train"
MIRROR = PlaySpec(ENV, 2, 0, (ME, ME), seed=5)
AGAINST_RANDOM = PlaySpec(ENV, 2, 1, (RANDOM, ME), seed=5)


def play(spec: PlaySpec, actor: InstantActor | None = None, **options: Any) -> EpisodeResult:
    factory = PlayerFactory(ActorPool([actor or InstantActor()]))
    if "view" not in options:
        options["view"] = factory.view(spec)
    return asyncio.run(play_episode(spec, factory.players(spec), **options))


def lengths(seen: Trajectory) -> set[int]:
    lists = (
        seen.pid, seen.obs, seen.actions, seen.extracted_actions, seen.infos,
        seen.format_feedbacks, seen.prompt_ids, seen.completion_ids, seen.logprobs, seen.versions,
    )  # fmt: skip
    return {len(entries) for entries in lists}


def test_mirror_game_records_both_seats():
    result = play(MIRROR)
    (other,) = result.others
    mine = result.traj
    assert set(mine.pid) == {0}
    assert set(other.pid) == {1}
    assert len(mine.pid) + len(other.pid) == mine.num_turns == len(result.action_seq)
    for seen in (mine, other):
        assert lengths(seen) == {len(seen.pid)}
        assert seen.final_rewards == result.final_rewards
        assert seen.opponent == "mirror"
        assert set(seen.versions) == {3}
        assert seen.ended_by_invalid is None


def test_trajectory_keeps_prompt_and_sampled_tokens():
    actor = InstantActor()
    seen = play(AGAINST_RANDOM, actor).traj
    assert seen.obs == [prompt for prompt, *_ in actor.requests]
    assert all(prompt.startswith("<|im_start|>user\n") for prompt in seen.obs)
    assert all(prompt.endswith("<|im_start|>assistant\n") for prompt in seen.obs)
    for i, text in enumerate(seen.actions):
        assert seen.completion_ids[i] == [*text.encode(), END]
        assert seen.prompt_ids[i] == list(seen.obs[i].encode())
        assert len(seen.logprobs[i]) == len(seen.completion_ids[i])
    assert seen.extracted_actions[0] == f"[{seen.actions[0][7:-1]}]"


def test_other_opponents_are_not_recorded():
    actor = InstantActor()
    result = play(AGAINST_RANDOM, actor)
    assert result.others == []
    assert result.traj.opponent == "fixed"
    assert {lora for _, lora, _ in actor.requests} == {"adapters/3"}
    older = replace(MIRROR, agent_specs=(ME, replace(ME, model="adapters/1", version=1)))
    result = play(older, actor)
    assert result.others == []
    assert result.traj.opponent == "checkpoint"
    assert {lora for _, lora, _ in actor.requests} == {"adapters/3", "adapters/1"}


def test_a_game_is_the_same_for_the_same_seed():
    kuhn = replace(MIRROR, env_id="KuhnPoker-v0-train", seed=9)
    moves = ["[check]", "[bet]", "[call]", "[fold]"]

    def answer(prompt: str, rng: Any) -> str:
        return f"\\boxed{{{rng.choice(moves)}}}"

    for spec, answers in ((MIRROR, empty_cell), (AGAINST_RANDOM, empty_cell), (kuhn, answer)):
        first, again, other = (
            play(s, InstantActor(answers)) for s in (spec, spec, replace(spec, seed=spec.seed + 1))
        )
        assert first == again
        assert first != other


def test_turns_have_different_sampling_seeds():
    actor = InstantActor()
    turns = play(MIRROR, actor).num_turns
    assert len({seed for *_, seed in actor.requests}) == turns
    again = InstantActor()
    play(replace(MIRROR, sampling_seed=1), again)
    assert not {seed for *_, seed in actor.requests} & {seed for *_, seed in again.requests}


def test_invalid_move_is_marked_in_feedback():
    def then_nonsense(prompt: str, rng: Any) -> str:
        late = sum(cell.islower() for cell in board_of(prompt)) > 1
        return nonsense(prompt, rng) if late else empty_cell(prompt, rng)

    result = play(replace(MIRROR, agent_specs=(ME, ME)), InstantActor(then_nonsense))
    culprit = result.traj.ended_by_invalid
    assert culprit is not None
    for seen in (result.traj, *result.others):
        flags = [feedback["invalid_move"] for feedback in seen.format_feedbacks]
        formats = [feedback["correct_answer_format"] for feedback in seen.format_feedbacks]
        if seen.pid[0] == culprit:
            assert flags == [False] * (len(flags) - 1) + [True]
            assert formats[-1] is False
            assert seen.final_rewards[culprit] == -1
        else:
            assert not any(flags)
        assert seen.ended_by_invalid == culprit
    assert result.end_by_opponent_invalid == (culprit != 0)


def test_retried_move_counts_as_invalid():
    calls = []

    def first_wrong(prompt: str, rng: Any) -> str:
        calls.append(prompt)
        return nonsense(prompt, rng) if len(calls) == 1 else empty_cell(prompt, rng)

    result = play(MIRROR, InstantActor(first_wrong), error_allowance=1)
    assert [feedback["invalid_move"] for feedback in result.traj.format_feedbacks][:2] == [
        True, False,
    ]  # fmt: skip
    assert result.traj.ended_by_invalid is None
    assert result.num_turns == len(calls) > 5


def test_random_openings_vary_and_are_not_recorded():
    skipped = set()
    for seed in range(30):
        actor = InstantActor()
        result = play(replace(MIRROR, seed=seed), actor, random_opening_moves=4)
        skipped.add(result.num_turns - len(actor.requests))
        recorded = len(result.traj.pid) + sum(len(other.pid) for other in result.others)
        assert recorded == len(actor.requests) > 0
    assert skipped == {0, 1, 2, 3, 4}


def test_an_opening_never_ends_the_game():
    for seed in range(10):
        actor = InstantActor()
        play(replace(MIRROR, seed=seed), actor, random_opening_moves=9)
        assert actor.requests


def test_group_games_begin_alike_per_seat():
    first = replace(MIRROR, group="group-1", sampling_seed=1)
    games = [
        play(replace(first, sampling_seed=member), random_opening_moves=4) for member in (1, 2)
    ]
    assert games[0].traj.obs[0] == games[1].traj.obs[0]
    assert games[0].action_seq != games[1].action_seq
    assert games[0].traj.group == games[1].traj.group == "group-1/0"
    assert games[0].others[0].group == "group-1/1"


def test_episode_errors_name_their_cause():
    failing = InstantActor()
    failing.fail = lambda number: number == 2
    with pytest.raises(EngineError, match="request 2"):
        play(MIRROR, failing)
    with pytest.raises(GameError, match="NoSuchGame"):
        play(replace(MIRROR, env_id="NoSuchGame-v0"), view=None)
    unknown = replace(AGAINST_RANDOM, env_id="Briscola-v0-train")
    with pytest.raises(GameError, match="not known"):
        play(unknown, view=None)


def games(folder: Path, kind: Any) -> list[dict[str, Any]]:
    return list(read_games(folder, kind))


def replayed(game: dict[str, Any]) -> GameRunner:
    """The moves of a transcript, played again; each must be what the game shows then."""
    again = GameRunner(game["env_id"], len(game["players"]), game["seed"])
    for move in game["moves"]:
        assert again.observe() == type(again.observe())(move["seat"], move["observation"])
        again.step(move["action"])
        assert move["board"] == again.board()
        assert move["legal"] is not again.last_move_invalid
    return again


def test_a_transcript_is_the_whole_game_of_all_players(tmp_path):
    run = Run(
        tmp_path, InstantActor(listed_move), mode="random", checkpoints=3, compact_views=False,
        random_opening_moves=3,
    )  # fmt: skip
    run.play(12)
    found = games(tmp_path, "train")
    assert len(found) == 12
    for game in found:
        again = replayed(game)
        assert again.done
        assert {int(seat): reward for seat, reward in game["rewards"].items()} == again.rewards
        assert game["reason"] == again.infos[0]["reason"]
        wrote = [player["kind"] == "checkpoint" for player in game["players"]]
        for move in game["moves"]:
            assert ("boxed" in move["answer"]) == (wrote[move["seat"]] and not move["opening"])
        assert [player["learner"] for player in game["players"]].count(True) == 1
    assert any(move["opening"] for game in found for move in game["moves"])
    seen = {player["uid"] for game in found for player in game["players"]}
    assert seen <= {"ckpt-0", "ckpt-1", "ckpt-2", "fixed-random-legal"}
    assert len(seen) > 1


def test_transcripts_mark_illegal_moves(tmp_path):
    run = Run(tmp_path, InstantActor(nonsense))
    run.evaluate(4)
    found = games(tmp_path, "eval")
    assert [game["id"] for game in found] == ["eval-1", "eval-2", "eval-3", "eval-4"]
    for game in found:
        learner = next(player for player in game["players"] if player["learner"])
        assert (learner["uid"], learner["version"]) == ("ckpt-0", 0)
        assert game["moves"][-1]["answer"].startswith("I resign")
        assert not game["moves"][-1]["legal"]
        assert game["ended_by_invalid"] == learner["seat"]
    assert games(tmp_path, "train") == []


def test_first_games_of_a_checkpoint_are_transcribed(tmp_path):
    run = Run(tmp_path)
    run.play(TRANSCRIBED + 10)
    run.pool.add_checkpoint("adapters/1", 1)
    run.play(5)
    kept = [int(game["id"].removeprefix("train-")) for game in games(tmp_path, "train")]
    assert kept == [*range(1, TRANSCRIBED + 1), *range(TRANSCRIBED + 11, TRANSCRIBED + 16)]


@pytest.mark.parametrize("bound", [(3, 1 << 20), (1000, 900)])
def test_the_newest_games_stay_within_the_bound(tmp_path, monkeypatch, bound):
    monkeypatch.setitem(writers.LIMITS, "train", bound)
    writer = Transcripts(tmp_path)
    for number in range(20):
        if number == 10:  # another process goes on
            writer = Transcripts(tmp_path, resume_step=11)
        text = "x" * 200
        move = {"seat": 0, "observation": text, "shared": 0}
        writer.add({"id": number, "kind": "train", "step": number, "moves": [move]})
    kept = [game["id"] for game in games(tmp_path, "train")]
    assert kept == list(range(kept[0], 20))
    assert 3 <= len(kept) <= 8
    assert {path.name for path in (tmp_path / "games").iterdir()} == {
        "train.jsonl", "train.1.jsonl",
    }  # fmt: skip


def test_resumed_run_drops_replayed_training_games(tmp_path):
    first = Tracker("run", run_dir=tmp_path, writers=())
    for step in (0, 1, 2):
        first.log_learner({"step": step})
        for kind in ("eval", "train"):
            first.add_transcript({"id": f"{kind}-{step}", "kind": kind, "moves": []})
    with (tmp_path / "games" / "train.jsonl").open("a") as torn:
        torn.write('{"step": 0, "id"')
    again = Tracker("run", run_dir=tmp_path, writers=(), resume_step=1)
    again.load_state_dict(again.state_dict())
    assert [game["id"] for game in games(tmp_path, "train")] == ["train-0"]
    assert [game["id"] for game in games(tmp_path, "eval")] == ["eval-0", "eval-1"]


def test_transcripts_store_only_new_observations(tmp_path):
    run = Run(tmp_path, InstantActor(listed_move), compact_views=False)
    run.play(1)
    line = json.loads((tmp_path / "games" / "train.jsonl").read_text())
    whole = games(tmp_path, "train")[0]
    written = sum(len(move["observation"]) for move in line["moves"])
    assert written < 0.8 * sum(len(move["observation"]) for move in whole["moves"])
    replayed(whole)


def test_the_latest_game_is_shown_move_by_move(tmp_path):
    run = Run(tmp_path, InstantActor(nonsense))
    run.evaluate(1)
    shown = run.tracker.get_interface_info()["latest_game"]
    assert "eval-1: ckpt-0 against random-legal" in shown
    assert "I resign" in shown
    assert ": illegal" in shown
    assert "rewards 0: -1, 1: 1" in shown
    run = Run(tmp_path / "boards", InstantActor())
    run.play(1)
    game = games(tmp_path / "boards", "train")[0]
    shown = run.tracker.get_interface_info()["latest_game"]
    assert all(move["board"] in shown for move in game["moves"])
