"""A trained policy as plain arrays: enough to act, and a file that is safe to read.

The file is safetensors with JSON metadata. It comes out of the sandbox, so nothing in it is
believed: every name, shape, type and value is checked against what the metadata announces.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from p2p.files import open_data
from p2p.training.policies.network import NetworkShape, Tensors, action_mean
from p2p.training.policies.normalization import EPSILON, normalize

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from p2p.config import TrainConfig

MAX_FILE_BYTES = 1 << 30
MAX_HEADER_BYTES = 1 << 20

_Width = Annotated[int, Field(ge=1, le=1_000_000)]


class PolicyFileError(ValueError):
    """A policy file is damaged, or is not one."""


class _Metadata(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    format: Literal["p2p-policy-1"]
    env_id: Annotated[str, Field(max_length=200)]
    obs_dim: _Width
    action_dim: _Width
    net_arch: Annotated[tuple[_Width, ...], Field(max_length=64)]
    activation: Literal["tanh", "relu", "elu"]
    critic: bool = True
    normalize_obs: bool
    obs_clip: Annotated[float, Field(gt=0)]
    obs_epsilon: Annotated[float, Field(ge=0)]
    observe_time: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything needed to act. Arrays are not to be written to."""

    shape: NetworkShape
    tensors: Tensors
    """Parameters of actor and critic under the names of SB3's state_dict."""
    obs_mean: NDArray[np.float64]
    obs_var: NDArray[np.float64]
    action_low: NDArray[np.float32]
    action_high: NDArray[np.float32]
    obs_clip: float = 10.0
    obs_epsilon: float = EPSILON
    normalize_obs: bool = True
    """Whether the policy was trained on normalised observations; if not, mean and var say 0, 1."""
    env_id: str = ""
    observe_time: bool = False
    """Whether the last number of its observation is the share of the episode that has passed."""

    @classmethod
    def from_training(
        cls,
        config: TrainConfig,
        tensors: Tensors,
        statistics: Any | None,
        bounds: tuple[NDArray[np.float32], NDArray[np.float32]],
        **others: Any,
    ) -> Policy:
        """A learner's policy.

        Args:
            config: of the run.
            tensors: the network's parameters.
            statistics: `mean` and `var` of observations; None where they are not normalised.
            bounds: the lowest and the highest action.
            others: fields that differ from the configuration's.
        """
        low, high = bounds
        first = tensors.get("mlp_extractor.policy_net.0.weight", tensors["action_net.weight"])
        obs_dim = first.shape[1]
        fields = {
            "shape": NetworkShape.from_config(config, obs_dim, len(low)),
            "tensors": tensors,
            "obs_mean": np.zeros(obs_dim) if statistics is None else statistics.mean.copy(),
            "obs_var": np.ones(obs_dim) if statistics is None else statistics.var.copy(),
            "action_low": low,
            "action_high": high,
            "obs_clip": config.obs_clip,
            "normalize_obs": config.normalize_obs,
            "env_id": config.env_id,
            "observe_time": config.observe_time,
        }
        return cls(**{**fields, **others})

    def normalize_observations(self, obs: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the network's inputs for observations (N, D)."""
        if not self.normalize_obs:
            return obs.astype(np.float32)
        return normalize(obs, self.obs_mean, self.obs_var, self.obs_clip, self.obs_epsilon)

    def act(self, obs: NDArray[np.float64]) -> NDArray[np.float32]:
        """The deterministic actions (N, A) for raw observations (N, D), within the bounds."""
        means = action_mean(self.shape, self.tensors, self.normalize_observations(obs), np)
        actions: NDArray[np.float32] = np.clip(means, self.action_low, self.action_high)
        return actions

    def save(self, path: Path) -> None:
        from safetensors.numpy import save_file

        metadata = _Metadata(
            format="p2p-policy-1",
            env_id=self.env_id,
            **asdict(self.shape),
            normalize_obs=self.normalize_obs,
            obs_clip=self.obs_clip,
            obs_epsilon=self.obs_epsilon,
            observe_time=self.observe_time,
        )
        arrays = {f"policy.{name}": value for name, value in self.tensors.items()}
        arrays |= {name: getattr(self, name) for name in _EXTRAS}
        arrays = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
        save_file(arrays, path, metadata={"p2p": metadata.model_dump_json()})

    @classmethod
    def load(cls, path: Path) -> Policy:
        """Read and check a file that `save` wrote; raises PolicyFileError, also for hostile ones.

        OSError for a file that is not there, no regular one, or behind a link.
        """
        with open_data(path, sys.maxsize) as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise PolicyFileError(f"{path.name}: larger than {MAX_FILE_BYTES} bytes")
        return cls.from_bytes(data, path.name)

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "policy") -> Policy:
        """As `load`, for a file that has been read already; `name` stands in the messages."""
        metadata = _read_metadata(data, name)
        shape = NetworkShape(
            metadata.obs_dim,
            metadata.action_dim,
            metadata.net_arch,
            metadata.activation,
            metadata.critic,
        )
        arrays = _read_arrays(data, name, shape)
        if np.any(arrays["obs_var"] < 0):
            raise PolicyFileError(f"{name}: obs_var has negative entries")
        if np.any(arrays["action_low"] > arrays["action_high"]):
            raise PolicyFileError(f"{name}: action_low is above action_high")
        return cls(
            shape=shape,
            tensors={key: arrays[f"policy.{key}"] for key in shape.parameters()},
            obs_clip=metadata.obs_clip,
            obs_epsilon=metadata.obs_epsilon,
            normalize_obs=metadata.normalize_obs,
            env_id=metadata.env_id,
            observe_time=metadata.observe_time,
            **{key: arrays[key] for key in _EXTRAS},
        )


_EXTRAS = ("obs_mean", "obs_var", "action_low", "action_high")


def _read_metadata(data: bytes, name: str) -> _Metadata:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(MAX_HEADER_BYTES, len(data) - 8):
        raise PolicyFileError(f"{name}: not a safetensors file")
    try:
        header = json.loads(data[8 : 8 + length])
        return _Metadata.model_validate_json(header["__metadata__"]["p2p"])
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
        raise PolicyFileError(f"{name}: no usable policy metadata: {error}") from error


def _read_arrays(data: bytes, name: str, shape: NetworkShape) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    expected = expected_arrays(shape)
    sizes = [np.dtype(dtype).itemsize * prod(dims) for dtype, dims in expected.values()]
    if sum(sizes) > len(data):
        raise PolicyFileError(f"{name}: too short for the network it announces")
    try:
        arrays = load(data)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise PolicyFileError(f"{name}: {error}") from error
    if set(arrays) != set(expected):
        wrong = sorted(set(arrays) ^ set(expected))[:5]
        raise PolicyFileError(f"{name}: missing or unexpected arrays: {', '.join(wrong)}")
    for key, (dtype, dims) in expected.items():
        array = arrays[key]
        if array.dtype != dtype or array.shape != dims:
            actual = f"{array.dtype}{array.shape}"
            raise PolicyFileError(f"{name}: {key} is {actual}, expected {dtype}{dims}")
        if not np.isfinite(array).all() and key not in ("action_low", "action_high"):
            raise PolicyFileError(f"{name}: {key} is not finite")
        if np.isnan(array).any():
            raise PolicyFileError(f"{name}: {key} has NaN")
    return arrays


def expected_arrays(shape: NetworkShape) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of each array in a policy file."""
    arrays = {f"policy.{key}": ("float32", dims) for key, dims in shape.parameters().items()}
    for key in ("obs_mean", "obs_var"):
        arrays[key] = ("float64", (shape.obs_dim,))
    for key in ("action_low", "action_high"):
        arrays[key] = ("float32", (shape.action_dim,))
    return arrays
