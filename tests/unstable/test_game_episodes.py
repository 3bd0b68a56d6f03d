"""One game: what is played and what is kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from instant_actor import END, InstantActor, board_of, empty_cell, nonsense

from unstable.actor import ActorPool
from unstable.core import AgentSpec, EpisodeResult, PlaySpec, Trajectory
from unstable.engines import EngineError
from unstable.episodes import PlayerFactory, play_episode
from unstable.games import GameError

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


def test_both_seats_of_a_mirror_game_are_recorded_to_the_last_move():
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


def test_what_is_kept_is_what_was_sampled_and_the_prompt_with_its_markup():
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


def test_against_another_only_the_learner_is_recorded():
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


def test_every_turn_has_a_seed_of_its_own():
    actor = InstantActor()
    turns = play(MIRROR, actor).num_turns
    assert len({seed for *_, seed in actor.requests}) == turns
    again = InstantActor()
    play(replace(MIRROR, sampling_seed=1), again)
    assert not {seed for *_, seed in actor.requests} & {seed for *_, seed in again.requests}


def test_an_invalid_move_is_told_from_the_others():
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


def test_a_move_taken_back_counts_as_invalid_and_the_game_goes_on():
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


def test_openings_vary_with_the_seed_and_are_nobodys():
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


def test_games_of_a_group_begin_alike_and_seats_have_groups_of_their_own():
    first = replace(MIRROR, group="group-1", sampling_seed=1)
    games = [
        play(replace(first, sampling_seed=member), random_opening_moves=4) for member in (1, 2)
    ]
    assert games[0].traj.obs[0] == games[1].traj.obs[0]
    assert games[0].action_seq != games[1].action_seq
    assert games[0].traj.group == games[1].traj.group == "group-1/0"
    assert games[0].others[0].group == "group-1/1"


def test_what_goes_wrong_has_a_name():
    failing = InstantActor()
    failing.fail = lambda number: number == 2
    with pytest.raises(EngineError, match="request 2"):
        play(MIRROR, failing)
    with pytest.raises(GameError, match="NoSuchGame"):
        play(replace(MIRROR, env_id="NoSuchGame-v0"), view=None)
    unknown = replace(AGAINST_RANDOM, env_id="Briscola-v0-train")
    with pytest.raises(GameError, match="not known"):
        play(unknown, view=None)
