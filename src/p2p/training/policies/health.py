"""How far an update moved a Gaussian policy, and how well the critic predicts.

Plain array functions for numpy and jax.numpy alike, so that both trainers report the same
quantities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType


def gaussian_shift(
    old_means: Any, old_log_std: Any, new_means: Any, new_log_std: Any, xp: ModuleType
) -> dict[str, Any]:
    """The KL divergence from the old to the new policy, split, and the shift of the means.

    Means are (..., A), log standard deviations (A,). `kl_mean_term + kl_std_term` is the exact
    divergence, summed over action dimensions and averaged over observations.
    `mean_shift_normalized` is the mean absolute shift in units of the old standard deviation.
    """
    shift = new_means - old_means
    log_ratio = new_log_std - old_log_std
    mean_term = 0.5 * xp.mean(xp.sum((shift * xp.exp(-new_log_std)) ** 2, axis=-1))
    std_term = xp.sum(log_ratio + 0.5 * xp.expm1(-2 * log_ratio))
    return {
        "kl_mean_term": mean_term,
        "kl_std_term": std_term,
        "mean_shift_normalized": xp.mean(xp.abs(shift) * xp.exp(-old_log_std)),
    }


def explained_variance(predicted: Any, actual: Any, xp: ModuleType) -> Any:
    """1 - Var(actual - predicted) / Var(actual); NaN when `actual` does not vary."""
    variance = xp.var(actual)
    unexplained = xp.var(actual - predicted) / xp.where(variance > 0, variance, 1)
    return xp.where(variance > 0, 1 - unexplained, xp.nan)
