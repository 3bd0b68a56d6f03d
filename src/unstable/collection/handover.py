"""What comes of a finished game, and who gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unstable.transcripts import transcript
from unstable.utils.handles import tell

if TYPE_CHECKING:
    from unstable.collection.flight import Job
    from unstable.core import EpisodeResult, Trajectory


def learning_seats(
    job: Job, result: EpisodeResult, *, filter_opponent_invalid: bool
) -> dict[int, Trajectory]:
    """By seat, the trajectories to be used.

    With the filter, a seat whose game another's invalid move ended has nothing to learn from it; of
    a mirror game, the seat that made the move does.
    """
    seats = {job.spec.player_id: result.traj}
    seats |= {other.pid[0]: other for other in result.others if other.pid}
    if not filter_opponent_invalid:
        return seats
    return {seat: seen for seat, seen in seats.items() if seen.ended_by_invalid in (None, seat)}


def push_training(job: Job, seats: dict[int, Trajectory], buffer: Any, tracker: Any) -> None:
    """A training game, for buffer and tracker."""
    env_id = job.spec.env_id
    for number, (seat, seen) in enumerate(seats.items()):
        tell(tracker, "add_trajectory", seen, seat, env_id, new_game=number == 0)
    moved = {seat: seen for seat, seen in seats.items() if seen.pid}
    if moved:
        tell(buffer, "add_game", list(moved.values()), env_id, list(moved))


def push_outcome(job: Job, result: EpisodeResult, pool: Any) -> None:
    """A training game's outcome, for the pool."""
    spec, meta = job.spec, job.meta
    others = [seat for seat in range(spec.num_players) if seat != spec.player_id]
    rewards = [result.final_rewards[seat] for seat in (spec.player_id, *others)]
    if len(others) == 1:
        tell(
            pool, "push_game_outcome", meta.ckpt_uid, meta.opponent_uid, rewards[0],
            result.action_seq, spec.env_id, opp_reward=rewards[1],
        )  # fmt: skip
    else:
        uids = [meta.ckpt_uid, *[meta.opponent_uid] * len(others)]
        tell(pool, "push_outcome", uids, rewards, result.action_seq, spec.env_id)


def push_transcript(job: Job, result: EpisodeResult, number: int, tracker: Any) -> None:
    """A game of either kind as people may read it, for the tracker; nothing if it has none.

    Args:
        job: the game that was to be played.
        result: what came of it.
        number: which of its kind it is.
        tracker: gets it.
    """
    if result.moves:
        tell(tracker, "add_transcript", transcript(job.spec, job.meta, result, number))


def push_evaluation(job: Job, result: EpisodeResult, tracker: Any) -> None:
    """An evaluation game, for the tracker."""
    spec, meta = job.spec, job.meta
    tell(
        tracker, "add_eval_episode", result.final_rewards, spec.player_id, spec.env_id,
        meta.ckpt_uid, meta.opponent_uid or "", seed=spec.seed, num_turns=result.num_turns,
        reason=result.reason, invalid=result.traj.ended_by_invalid == spec.player_id,
    )  # fmt: skip
