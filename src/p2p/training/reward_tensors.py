"""A reward called on tensors, where they lie: the same file that takes NumPy arrays.

`torch._numpy` is NumPy's interface over tensors. The reward's module finds it under the name of
NumPy, and its arguments are arrays of it. What it returns is checked as on NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from p2p.training.engines.engine_env import DATA
from p2p.training.envs.batched_env import BatchData
from p2p.training.reward_loader import EPISODE_START, FunctionReward, RewardSource, parse_source
from p2p.training.reward_runner import unpack

if TYPE_CHECKING:
    from p2p.training.engines.engine_env import EngineEnv
    from p2p.training.reward_runner import RewardRunner

try:
    tensor_numpy: Any = import_module("torch._numpy")  # by its name: it has no types
except ImportError:  # torch has no public name for it; rewards then see NumPy arrays
    tensor_numpy = None
COMPARED_STEPS, EAGER_STEPS = 8, 2
CAPTURES = True
"""Whether calls are replayed as CUDA graphs where they can be."""
TOLERANCE = 1e-4
"""Of a value's largest: tensors are float32, and so are the sums over them."""

TensorRewards = tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor]
"""Totals, terms, and where the reward ends the episode."""
_CREATING = frozenset(
    {"arange", "array", "asarray", "empty", "eye", "full", "linspace", "ones", "zeros"}
)


class DeviceNumpy:
    """`torch._numpy`, with new arrays on a device."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)

    def clip(self, a: Any, a_min: Any = None, a_max: Any = None, **bounds: Any) -> Any:
        """Bounds that are numbers stay so: `torch._numpy` makes tensors of them, on the CPU."""
        low, high = bounds.pop("min", a_min), bounds.pop("max", a_max)
        numbers = all(each is None or isinstance(each, int | float) for each in (low, high))
        if bounds or not numbers or low is high is None:
            return tensor_numpy.clip(a, low, high, **bounds)
        return tensor_numpy.asarray(torch.clamp(tensor_numpy.asarray(a).tensor, low, high))

    def __getattr__(self, name: str) -> Any:
        value = getattr(tensor_numpy, name)
        if name not in _CREATING:
            return value

        def create(*args: Any, **kwargs: Any) -> Any:
            with self._device:
                return value(*args, **kwargs)

        return create


class TensorTransition(NamedTuple):
    """One step of N environments, as a reward sees it: Transition on the engine's device."""

    obs: torch.Tensor
    action: torch.Tensor
    next_obs: torch.Tensor
    info: Mapping[str, torch.Tensor]
    episode_start: torch.Tensor

    def tensors(self) -> list[torch.Tensor]:
        return [self.obs, self.action, self.next_obs, *self.info.values(), self.episode_start]

    def clone(self) -> TensorTransition:
        info = {name: value.clone() for name, value in self.info.items()}
        obs, action, next_obs = self.obs.clone(), self.action.clone(), self.next_obs.clone()
        return TensorTransition(obs, action, next_obs, info, self.episode_start.clone())


class TensorReward:
    """Rewards and terms of N transitions, all on one device."""

    def __init__(self, code: str, engine: str, env: EngineEnv, *, ends_episodes: bool) -> None:
        reward = parse_source(code, engine).build()
        function = reward.function if isinstance(reward, FunctionReward) else type(reward).compute
        namespace: dict[str, Any] = function.__globals__
        numpy = DeviceNumpy(env.device)
        namespace.update({name: numpy for name, v in namespace.items() if v is np})
        self._reward, self._env, self._ends_episodes = reward, env, ends_episodes
        self._info: Mapping[str, torch.Tensor] = {}
        self._data = BatchData(env.model, self._field)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: TensorTransition | None = None
        self._outputs: tuple[torch.Tensor, tuple[str, ...]] | None = None

    def __call__(self, transition: TensorTransition) -> TensorRewards:
        if self._graph is None or self._inputs is None or self._outputs is None:
            return self._eager(transition)
        for kept, tensor in zip(self._inputs.tensors(), transition.tensors(), strict=True):
            kept.copy_(tensor)
        self._graph.replay()
        values, names = self._outputs
        total, failed, *terms = values.clone()
        return total, dict(zip(names, terms, strict=True)), failed > 0

    def capture(self, transition: TensorTransition) -> None:
        """Replay its calls as one CUDA graph from now on, where nothing in it waits for the GPU.

        NumPy's interface over tensors costs more than the GPU's work of a step.
        """
        inputs = transition.clone()
        state: dict[str, Any] = getattr(self._reward, "__dict__", {})
        kept = {name: _copy_tensor(v.tensor) for name, v in state.items() if _is_array(v)}
        state.update(kept)
        before = dict(state)
        mode = torch.cuda.get_sync_debug_mode()
        try:
            torch.cuda.set_sync_debug_mode("error")  # a capture that fails leaves CUDA unusable
            self._eager(inputs)
        except RuntimeError:
            return
        finally:
            torch.cuda.set_sync_debug_mode(mode)
            changed = {name for name, value in state.items() if value is not before.get(name)}
            state.clear()
            state.update(before)
        if not changed.issubset(kept):
            return
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            total, terms, failed = self._eager(inputs)
            values = torch.stack([total, failed.float(), *terms.values()])
            for name, array in kept.items():  # the next replay begins where this one ends
                array.tensor.copy_(state[name].tensor)
        state.update(kept)
        self._graph, self._inputs, self._outputs = graph, inputs, (values, tuple(terms))

    def _eager(self, transition: TensorTransition) -> TensorRewards:
        obs, action, next_obs, self._info, start = transition
        known = {name: _copy_tensor(value) for name, value in self._info.items() if "." not in name}
        known |= {EPISODE_START: _copy_tensor(start), "mj_model": self._env.model, DATA: self._data}
        step = _copy_tensor(obs), _copy_tensor(action), _copy_tensor(next_obs), known
        total, terms = unpack(self._reward.compute(*step))
        rows = {name: _rows(value, start) for name, value in terms.items()}
        failed = torch.zeros_like(start)
        if self._ends_episodes:
            failed = _rows(self._reward.failed(*step), start) > 0
        return _rows(total, start), rows, failed

    def _field(self, name: str) -> Any:
        key = f"{DATA}.{name}"
        if key not in self._info:
            self._env.read_fields.add(name)  # from now on it stands in the info
            return _copy_tensor(self._env.field_tensor(name))
        return _copy_tensor(self._info[key])


def _is_array(value: object) -> bool:
    return isinstance(value, tensor_numpy.ndarray)


def _copy_tensor(tensor: torch.Tensor) -> Any:
    """Copy a tensor, because a reward must not change what the policy learns from."""
    return tensor_numpy.asarray(tensor.clone())


def _rows(value: Any, like: torch.Tensor) -> torch.Tensor:
    tensor = value.tensor if _is_array(value) else torch.as_tensor(value)
    if not tensor.dim() and tensor.device.type == "cpu":  # a number: filled in, not copied over
        return torch.full(like.shape, float(tensor), device=like.device)
    values = tensor.to(like.device, torch.float32)
    if values.shape not in ((), like.shape):
        raise ValueError(f"a value of shape {tuple(values.shape)}")
    return values.expand(like.shape)


def decide_tensors(
    code: str, env: EngineEnv, runner: RewardRunner, *, engine: str, captured: bool = CAPTURES
) -> tuple[TensorReward | None, str]:
    """The reward on tensors, if it gives what it gives on NumPy arrays; if not, why."""
    from p2p.training.reward_runner import Transition

    if problem := _describe_unfit(parse_source(code, engine), runner):
        return None, problem
    generator = torch.Generator().manual_seed(0)
    groups = env.reset_tensors(0)
    start = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    try:
        reward = TensorReward(code, engine, env, ends_episodes=runner.ends_episodes)
        for step in range(COMPARED_STEPS):
            shape = env.num_envs, env.single_action_space.shape[0]
            action = (2 * torch.rand(shape, generator=generator) - 1).to(env.device)
            reached = env.step_tensors(action)
            transition = TensorTransition(
                groups["actor"], action, reached.groups["actor"], env.tensor_info(), start
            )
            if captured and step == EAGER_STEPS and env.device != "cpu":
                reward.capture(transition)
            rewards = reward(transition)
            before, after = (
                value.cpu().numpy().astype(np.float64)
                for value in (transition.obs, transition.next_obs)
            )
            known = env.batch_info(), start.cpu().numpy()
            on_arrays = Transition(before, action.cpu().numpy(), after, *known)
            expected = runner(on_arrays)
            problem = _difference(rewards, expected)
            if runner.ends_episodes and not problem:
                ended = runner.failed(on_arrays)
                if not np.array_equal(rewards[2].cpu().numpy(), ended):
                    problem = "failed differs on tensors"
            if problem:
                if captured and step >= EAGER_STEPS and env.device != "cpu":
                    runner.restart()
                    return decide_tensors(code, env, runner, engine=engine, captured=False)
                return None, problem
            start = reached.terminated | reached.truncated
            groups = env.restart_tensors(start)
    # Whatever a reward's code may raise on arrays that it was not written for.
    except Exception as error:  # noqa: BLE001
        return None, f"on tensors: {type(error).__name__}: {error}"[:300]
    return reward, ""


def _describe_unfit(source: RewardSource, runner: RewardRunner) -> str:
    """Return why a reward is not tried on tensors."""
    if tensor_numpy is None:
        return f"torch {torch.__version__} has no interface of NumPy's"
    if not runner.batched:
        return "it is called once per environment"
    if runner.stateful and (runner.has_reset or not source.reads_episode_start):
        return "it keeps state, and does not read _episode_start to begin anew"
    return ""


def _difference(found: TensorRewards, expected: tuple[Any, Mapping[str, Any]]) -> str:
    if list(found[1]) != list(expected[1]):
        return "its terms differ on tensors"
    pairs = [("the total", found[0], expected[0])]
    pairs += [(name, found[1][name], expected[1][name]) for name in expected[1]]
    whole = np.abs(expected[0]).max()
    for name, tensor, array in pairs:
        gap = np.abs(tensor.cpu().numpy() - array).max()
        # A term that is small beside the total may be rounded by as much as one that is not.
        if not gap <= TOLERANCE * (max(np.abs(array).max(), 0.1 * whole) + 1e-3):
            return f"{name} differs by {gap:.3g} on tensors"
    return ""
