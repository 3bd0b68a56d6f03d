"""A policy for programs without Stable-Baselines3: TorchScript and ONNX.

Both take raw observations (N, D) as float32 and return the deterministic actions (N, A), within
their bounds: normalisation and clipping are inside. Of a robot they carry PolicyMetadata, as JSON:
TorchScript in the extra file `metadata.json`, ONNX in the property of the same name, where each
field is a property of its own besides, written as mjlab's own exporter writes lists.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from p2p.training.policies.policy import Policy
from p2p.training.policies.sb3_export import network_kwargs

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from p2p.contracts import PolicyMetadata

INPUT, OUTPUT = "observation", "action"
METADATA = "metadata.json"
OPSET = 17
"""Of 2022, which every runtime in use reads; the operations are older."""


def save_torchscript(policy: Policy, path: Path, metadata: PolicyMetadata | None = None) -> None:
    """Write the file that `torch.jit.load` reads."""
    extra = {} if metadata is None else {METADATA: metadata.model_dump_json()}
    example = torch.zeros(1, policy.shape.obs_dim)
    with warnings.catch_warnings():
        # TorchScript is deprecated in favour of torch.export, and is what robots' runtimes load.
        warnings.simplefilter("ignore", DeprecationWarning)
        module = torch.jit.trace(_TorchPolicy(policy), example, check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(module, str(path), _extra_files=extra)


class _TorchPolicy(torch.nn.Module):
    obs_mean: torch.Tensor
    obs_std: torch.Tensor
    obs_clip: torch.Tensor
    action_low: torch.Tensor
    action_high: torch.Tensor

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        activation = network_kwargs(policy.shape)["activation_fn"]
        layers: list[torch.nn.Module] = []
        for name in _layers(policy):
            weight = torch.from_numpy(np.array(policy.tensors[f"{name}.weight"]))
            linear = torch.nn.Linear(weight.shape[1], weight.shape[0])
            linear.weight.data = weight
            linear.bias.data = torch.from_numpy(np.array(policy.tensors[f"{name}.bias"]))
            layers += [linear, activation()]
        self.network = torch.nn.Sequential(*layers[:-1]).requires_grad_(False)
        for name, value in _constants(policy).items():
            self.register_buffer(name, torch.from_numpy(value))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        scaled = (observation - self.obs_mean) / self.obs_std
        scaled = torch.clamp(scaled, -self.obs_clip, self.obs_clip)
        return torch.clamp(self.network(scaled), self.action_low, self.action_high)


def save_onnx(policy: Policy, path: Path, metadata: PolicyMetadata | None = None) -> None:
    """Write an ONNX model of a fixed input and output; the size of the batch is free."""
    constants = _constants(policy)
    constants["obs_floor"] = -constants["obs_clip"]
    nodes = [
        helper.make_node("Sub", [INPUT, "obs_mean"], ["centred"]),
        helper.make_node("Div", ["centred", "obs_std"], ["scaled"]),
        helper.make_node("Clip", ["scaled", "obs_floor", "obs_clip"], ["normalized"]),
    ]
    value, layers = "normalized", _layers(policy)
    for name in layers:
        constants |= {key: policy.tensors[key] for key in (f"{name}.weight", f"{name}.bias")}
        nodes.append(
            helper.make_node("Gemm", [value, f"{name}.weight", f"{name}.bias"], [name], transB=1)
        )
        value = name
        if name != layers[-1]:
            operation = {"tanh": "Tanh", "relu": "Relu", "elu": "Elu"}[policy.shape.activation]
            value = f"{name}.{operation.lower()}"
            nodes.append(helper.make_node(operation, [name], [value]))
    # Clip of ONNX has one bound for all actions, ours have one each.
    nodes += [
        helper.make_node("Max", [value, "action_low"], ["above"]),
        helper.make_node("Min", ["above", "action_high"], [OUTPUT]),
    ]
    graph = helper.make_graph(
        nodes,
        policy.env_id or "policy",
        [_port(INPUT, policy.shape.obs_dim)],
        [_port(OUTPUT, policy.shape.action_dim)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="prompt2policy"
    )
    model.ir_version = 8  # of the same year as the operations
    properties = {} if metadata is None else onnx_properties(metadata)
    if policy.observe_time:
        properties["observe_time"] = "steps / max_episode_steps, last"
    helper.set_model_props(model, properties)
    onnx.checker.check_model(model, full_check=True)
    onnx.save_model(model, path)


def onnx_properties(metadata: PolicyMetadata) -> dict[str, str]:
    """Commas between the entries of a list, semicolons inside an entry, as mjlab has it."""

    def text(value: object, separators: str = ",;") -> str:
        if value is None:  # a bound that is not there
            return text((-np.inf, np.inf), separators)
        if isinstance(value, float):
            return f"{value:.9g}"
        if isinstance(value, tuple):
            return separators[0].join(text(entry, separators[1:]) for entry in value)
        return str(value)

    properties = {name: text(value) for name, value in metadata}
    return properties | {METADATA: metadata.model_dump_json()}


def _layers(policy: Policy) -> list[str]:
    return [*policy.shape.hidden("policy_net"), "action_net"]


def _constants(policy: Policy) -> dict[str, NDArray[np.float32]]:
    """Return what observations are normalised with, and the bounds of actions."""
    clip = policy.obs_clip if policy.normalize_obs else np.inf
    std = np.sqrt(policy.obs_var + policy.obs_epsilon) if policy.normalize_obs else policy.obs_var
    return {
        "obs_mean": policy.obs_mean.astype(np.float32),
        "obs_std": std.astype(np.float32),
        "obs_clip": np.array(clip, np.float32),
        "action_low": policy.action_low,
        "action_high": policy.action_high,
    }


def _port(name: str, width: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])
