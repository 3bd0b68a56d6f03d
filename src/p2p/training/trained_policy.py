"""A trained policy as an object: act, evaluate, export."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from p2p.config import TrainConfig
    from p2p.contracts import EvalResult
    from p2p.records.iteration_record import IterationRecord
    from p2p.training.policies.policy import Policy


@dataclass(frozen=True)
class TrainedPolicy:
    """A trained policy: a checkpoint of a run."""

    record: IterationRecord
    config: TrainConfig
    step: int

    @property
    def path(self) -> Path:
        """The file that Stable-Baselines3 loads; it is written when it is first asked for."""
        from p2p.training.checkpoints import export_policy

        return export_policy(self.record, self.step)

    @cached_property
    def _network(self) -> Policy:
        from p2p.training.policies.policy import Policy

        folder = self.record.checkpoints_dir / f"step_{self.step}"
        return Policy.load(folder / "policy.safetensors")

    def act(self, obs: ArrayLike) -> NDArray[np.float32]:
        """The action for an observation of the environment, or one for each row of several."""
        import numpy as np

        rows = np.asarray(obs, dtype=np.float64)
        return self._network.act(np.atleast_2d(rows)).reshape(*rows.shape[:-1], -1)

    def evaluate(self, episodes: int = 16, seed: int = 1) -> EvalResult:
        """Play episodes that training has not seen; equal seeds give equal episodes.

        `seed` is a block of evaluation seeds; training evaluates on block 0.
        """
        from p2p.training.evaluation import evaluation_seed
        from p2p.training.replay import replay

        start = evaluation_seed(seed)
        played = replay(self.record, self.config, step=self.step, episodes=episodes, seed=start)
        return played.result

    def export(self, folder: str | Path) -> list[Path]:
        """Write weights, reward, metrics and a model card into a new folder; returns its files."""
        from p2p.training.export import export_run

        return export_run(self.record, self.config, self.step, Path(folder))
