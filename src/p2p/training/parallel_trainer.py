"""LocalTrainer, under the name that the public interface gives it."""

from p2p.training.trainer import LocalTrainer

__all__ = ["LocalTrainer"]
