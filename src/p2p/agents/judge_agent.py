"""Who judges a policy: by code, by eye, or by both; on several episodes, by one rubric."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from p2p.agents.judging.panel import Episode, Panel
from p2p.agents.judging.summaries import episode_summary
from p2p.training.evaluation import evaluation_seed
from p2p.training.policies.policy import Policy
from p2p.training.recording import play_episodes
from p2p.training.trajectory import Trajectory

if TYPE_CHECKING:
    from p2p.config import LoopConfig, TrainConfig
    from p2p.contracts import Intent, JudgeStrategy, JudgmentResult, TrainSummary
    from p2p.inference.llm_client import LLMClient


def judge_run(
    client: LLMClient,
    vlm: LLMClient | None,
    intent: Intent,
    judge_code: str | None,
    config: TrainConfig,
    policy: Path,
    *,
    step: int,
    episodes: int,
    block: int,
    folder: Path,
    loop: LoopConfig,
    strategy: JudgeStrategy | None = None,
    training: TrainSummary | None = None,
) -> JudgmentResult:
    """Play a policy on the starts of a block and judge what it does.

    Every episode is measured; three of them are looked at where someone looks: the p10, median and
    p90 by the code judge's score, or the first three without it. Trajectories and videos stay in
    `folder`.

    Args:
        client: Settles what the two judges differ on.
        vlm: Looks at the pictures; None: nobody does.
        intent: The rubric.
        judge_code: The source of `judge_fn`; None: there is none.
        config: How the policy was trained.
        policy: Its file, or the folder of its checkpoint.
        step: Of its checkpoint.
        episodes: How many to play.
        block: Of `evaluation_seed`; no two blocks share a start.
        folder: Where the episodes are kept.
        loop: Threshold, strategy, sandbox.
        strategy: In place of the loop's: `code` for a judgement that costs nothing.
        training: What is told to the judge of the training run.

    Raises:
        BudgetExhausted: the session's budget does not allow for the next question.
        AuthenticationFailed: the only judge asked for has no valid key.
        SandboxUnavailable, PolicyFileError, OSError
    """
    strategy = strategy or loop.strategy
    seed = evaluation_seed(block)
    played = []
    folder.mkdir(parents=True, exist_ok=True)
    acting = Policy.load(policy / "policy.safetensors" if policy.is_dir() else policy)
    each_episode = play_episodes(config, acting, episodes=episodes, seed=seed)
    for number, trajectory in enumerate(each_episode, seed):
        file = folder / f"trajectory_seed_{number}.npz"
        trajectory.save(file)
        summary = episode_summary(config, trajectory, seed=number, step=step, training=training)
        played.append(Episode(f"seed_{number}", number, file, summary))
    panel = Panel(client, vlm, intent, judge_code, strategy, loop)
    return panel.judge(played, step)


def judge_trajectories(
    intent: Intent,
    judge_code: str,
    config: TrainConfig,
    trajectories: Sequence[Path],
    *,
    step: int | None,
    loop: LoopConfig,
) -> JudgmentResult:
    """Judge episodes that are recorded already, by code alone.

    The last part of a file's name is the episode's label, as in trajectory_1024_median.npz.
    """
    played = [
        Episode(
            label=file.stem.rpartition("_")[2],
            seed=None,
            file=file,
            summary=episode_summary(config, Trajectory.load(file), step=step),
        )
        for file in trajectories
    ]
    return Panel(None, None, intent, judge_code, "code", loop).judge(played, step)
