"""An environment from a model file, as Gymnasium steps it and as a batch does.

Both compute observations by the same functions of arrays, one row or many.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv
from gymnasium.spaces import Box

from p2p.training.envs.batched_env import Kernel, Outcome
from p2p.training.model_files.record import RobotModel
from p2p.training.specs.quantities import Robot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from p2p.training.envs.batched_env import F64, Array, Bools

FREE, BALL, SLIDE, HINGE = (int(kind) for kind in (
    mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_BALL, mujoco.mjtJoint.mjJNT_SLIDE,
    mujoco.mjtJoint.mjJNT_HINGE,
))  # fmt: skip
_VERTICAL = 0.99


class ObservationLayout:
    """Which numbers of the state are observed, in this order.

    Positions as they are, cosines and sines of joints that turn without end, the world's upward
    direction in the free body's frame, its velocity in that frame, other velocities, and the action
    before. Where the robot is on the floor and where it heads is left out.
    """

    def __init__(self, model: mujoco.MjModel, record: RobotModel) -> None:
        self.num_actions = model.nu if record.observe_action else 0
        root = Robot(model, np.array(record.start_qpos), 1.0).root
        self.free: tuple[int, int, int] | None = None
        """The free body that is the robot, and where its qpos and qvel begin."""
        self.objects: list[tuple[int, int]] = []
        """Where qpos and qvel of other free bodies begin."""
        positions, turning, velocities = [], [], []
        for joint in range(model.njnt):
            body, kind = int(model.jnt_bodyid[joint]), int(model.jnt_type[joint])
            q, v = int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])
            upright = abs(model.jnt_axis[joint, 2]) > _VERTICAL
            if kind == FREE and body == root:
                self.free = body, q, v
                positions += [q, q + 1, q + 2] if record.observe_heading else [q + 2]
                velocities += [v + 3, v + 4, v + 5]
            elif kind == FREE:
                self.objects.append((q, v))
            elif kind == BALL:
                positions += range(q, q + 4)
                velocities += range(v, v + 3)
            else:
                place = body == root and not model.jnt_limited[joint] and (kind == HINGE) == upright
                velocities.append(v)
                if kind == HINGE and not model.jnt_limited[joint]:
                    turning += [] if place and not record.observe_heading else [q]
                elif not place or record.observe_heading:
                    positions.append(q)
        self.positions = np.array(positions, dtype=np.intp)
        self.turning = np.array(turning, dtype=np.intp)
        self.velocities = np.array(velocities, dtype=np.intp)
        self.heading = self.free is not None and record.observe_heading

    @cached_property
    def size(self) -> int:
        whole = 6 if self.free else 0
        counts = (
            len(self.positions),
            2 * len(self.turning),
            len(self.velocities),
            self.num_actions,
        )
        return sum(counts) + whole + 2 * self.heading + 6 * len(self.objects)

    def observe(self, qpos: F64, qvel: F64, action: F64) -> F64:
        """(N, size) of states and of the actions that led to them."""
        parts = [qpos[:, self.positions]]
        if len(self.turning):
            angles = qpos[:, self.turning]
            parts += [np.cos(angles), np.sin(angles)]
        if self.free is not None:
            _, q, v = self.free
            matrix = rotation(qpos[:, q + 3 : q + 7])
            parts += [matrix[2], rotate_to_local(matrix, qvel[:, v : v + 3])]
            if self.heading:
                parts.append(np.stack((matrix[0][:, 0], matrix[1][:, 0]), axis=1))
            for a, b in self.objects:
                place = qpos[:, a : a + 3] - qpos[:, q : q + 3]
                parts += [
                    rotate_to_local(matrix, place),
                    rotate_to_local(matrix, qvel[:, b : b + 3]),
                ]
        else:
            for a, b in self.objects:
                parts += [qpos[:, a : a + 3], qvel[:, b : b + 3]]
        parts.append(qvel[:, self.velocities])
        if self.num_actions:
            parts.append(action)
        return np.concatenate(parts, axis=1)

    def sources(self) -> list[tuple[str, str]]:
        """Of each number: where in MjData it comes from, and what it is where that is no field."""
        rows = [(f"qpos[{i}]", "") for i in self.positions]
        rows += [(f"cos(qpos[{i}])", "") for i in self.turning]
        rows += [(f"sin(qpos[{i}])", "") for i in self.turning]
        own = ""
        if self.free is not None:
            body, q, v = self.free
            rows += [(f"xmat[{body}, {6 + k}]", f"up {a}") for k, a in enumerate("xyz")]
            own = f"xmat[{body}].T @ "
            rows += [
                (f"({own}qvel[{v}:{v + 3}])[{k}]", f"velocity {a}") for k, a in enumerate("xyz")
            ]
            if self.heading:
                rows += [(f"xmat[{body}, {3 * k}]", f"heading {a}") for k, a in enumerate("xy")]
        for a, b in self.objects:
            place = f"(qpos[{a}:{a + 3}] - qpos[{q}:{q + 3}])" if own else f"qpos[{a}:{a + 3}]"
            rows += [(f"({own}{place})[{k}]", f"object place {c}") for k, c in enumerate("xyz")]
            rows += [
                (f"({own}qvel[{b}:{b + 3}])[{k}]", f"object velocity {c}")
                for k, c in enumerate("xyz")
            ]
        rows += [(f"qvel[{i}]", "") for i in self.velocities]
        rows += [(f"last_action[{i}]", "action before") for i in range(self.num_actions)]
        return rows


def rotation(quaternion: F64) -> tuple[F64, F64, F64]:
    """The rows of rotation matrices, (N, 3) each, of unit quaternions (N, 4)."""
    w, x, y, z = quaternion.T
    return (
        np.stack((1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)), axis=1),
        np.stack((2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)), axis=1),
        np.stack((2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)), axis=1),
    )


def rotate_to_local(matrix: tuple[F64, F64, F64], vectors: F64) -> F64:
    """Rotate vectors of the world (N, 3) to the local frames of these matrices."""
    a, b, c = matrix
    turned: F64 = a * vectors[:, :1] + b * vectors[:, 1:2] + c * vectors[:, 2:3]
    return turned


class EpisodeEnd:
    """Whether states end an episode, by the record's rules."""

    def __init__(
        self, model: mujoco.MjModel, record: RobotModel, layout: ObservationLayout
    ) -> None:
        self._layout = layout
        self._height: tuple[int, float, float] | None = None
        self._angle: tuple[int, float, float] | None = None
        self._tilt = record.ends.tilt
        start = np.array(record.start_qpos)
        data = mujoco.MjData(model)
        data.qpos[:] = start
        mujoco.mj_kinematics(model, data)
        root = Robot(model, start, 1.0).root
        if root is None:
            self._tilt = None
            return
        low, high = record.ends.height or (None, None)
        for joint in range(
            model.body_jntadr[root], model.body_jntadr[root] + model.body_jntnum[root]
        ):
            kind, q = int(model.jnt_type[joint]), int(model.jnt_qposadr[joint])
            upright = abs(model.jnt_axis[joint, 2]) > _VERTICAL
            if kind == FREE or (kind == SLIDE and upright):
                q += 2 * (kind == FREE)
                offset = float(data.xpos[root, 2] - start[q])
                self._height = (
                    q,
                    -np.inf if low is None else low - offset,
                    np.inf if high is None else high - offset,
                )
            elif kind == HINGE and not upright:
                self._angle = q, float(start[q]), float(np.sign(model.jnt_axis[joint, 1]) or 1.0)
        if self._layout.free is not None:
            q = self._layout.free[1]
            self._up = rotation(start[None, q + 3 : q + 7])[2][0]

    def __call__(self, qpos: F64, qvel: F64) -> Bools:
        finite = np.isfinite(np.concatenate((qpos, qvel), axis=1))
        over: Bools = ~np.logical_and.reduce(finite, axis=1)
        if self._height is not None:
            q, low, high = self._height
            over |= ~((qpos[:, q] > low) & (qpos[:, q] < high))
        if self._tilt is not None and self._layout.free is not None:
            q = self._layout.free[1]
            up = rotation(qpos[:, q + 3 : q + 7])[2]
            over |= np.add.reduce(up * self._up, axis=1) < np.cos(self._tilt)
        elif self._tilt is not None and self._angle is not None:
            q, start, _ = self._angle
            over |= np.cos(qpos[:, q] - start) < np.cos(self._tilt)
        return over


def load_robot(folder: Path) -> tuple[RobotModel, mujoco.MjModel]:
    """The record and the compiled model of a model's folder; for sandboxed processes."""
    record = RobotModel.model_validate_json((folder / "record.json").read_bytes())
    return record, mujoco.MjModel.from_binary_path(str(folder / "model.mjb"))


class ModelEnv(MujocoEnv):
    """The environment of one model file; its own reward is 0."""

    metadata: dict[str, Any] = {  # noqa: RUF012 - as in gymnasium.Env
        "render_modes": ["human", "rgb_array", "depth_array", "rgbd_tuple"]
    }

    def __init__(
        self, folder: str, terminate_when_unhealthy: bool = True, render_mode: str | None = None
    ) -> None:
        self.record, self._compiled = load_robot(Path(folder))
        self.layout = ObservationLayout(self._compiled, self.record)
        self.over = EpisodeEnd(self._compiled, self.record, self.layout)
        self.terminates = terminate_when_unhealthy
        self.offset, self.scale = (
            np.array(self.record.action_offset),
            np.array(self.record.action_scale),
        )
        self.last_action = np.zeros((1, self._compiled.nu))
        space = Box(-np.inf, np.inf, (self.layout.size,), np.float64)
        super().__init__(
            str(Path(folder) / "model.mjb"), self.record.frame_skip, space, render_mode
        )
        self.init_qpos = np.array(self.record.start_qpos)
        self._noisy = noisy_positions(self.model)

    def _initialize_simulation(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
        model = self._compiled
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, self.width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, self.height)
        return model, mujoco.MjData(model)

    def _set_action_space(self) -> Box:
        self.action_space = Box(-1.0, 1.0, (self.model.nu,), np.float32)
        return self.action_space

    def reset_model(self) -> NDArray[np.float64]:
        """See MujocoEnv."""
        noise, model = self.record.start_noise, self.model
        qpos, qvel = self.init_qpos.copy(), np.zeros(model.nv)
        qpos[self._noisy] += self.np_random.uniform(-noise, noise, len(self._noisy))
        qvel += self.np_random.uniform(-noise, noise, model.nv)
        for joint, (low, high) in self.record.start_ranges.items():
            qpos[model.joint(joint).qposadr] = self.np_random.uniform(low, high)
        self.last_action = np.zeros((1, model.nu))
        self.set_state(qpos, qvel)  # type: ignore[no-untyped-call]
        return self._get_obs()

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], Any, bool, bool, dict[str, Any]]:
        """See gymnasium.Env."""
        self.last_action = np.clip(np.asarray(action, np.float64), -1.0, 1.0)[None]
        self.do_simulation((self.offset + self.scale * self.last_action)[0], self.frame_skip)
        over = self.over(self.data.qpos[None], self.data.qvel[None])
        return self._get_obs(), 0.0, bool(over[0] and self.terminates), False, {}

    def _get_obs(self) -> NDArray[np.float64]:
        qpos, qvel = self.data.qpos[None], self.data.qvel[None]
        observed: NDArray[np.float64] = self.layout.observe(qpos, qvel, self.last_action)[0]
        return observed


def noisy_positions(model: mujoco.MjModel) -> NDArray[np.intp]:
    """Where qpos may begin elsewhere: joints of one number that do not carry the robot along."""
    single = [
        int(model.jnt_qposadr[joint])
        for joint in range(model.njnt)
        if int(model.jnt_type[joint]) in (SLIDE, HINGE)
        and not (int(model.jnt_type[joint]) == SLIDE and not model.jnt_limited[joint])
    ]
    return np.array(single, dtype=np.intp)


class ModelKernel(Kernel):
    """ModelEnv for a batch."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._layout, self._over, self._terminates = env.layout, env.over, env.terminates
        self._offset, self._scale = env.offset, env.scale

    def bind(self, motion: F64, ctrl: F64, fields: dict[str, Array]) -> None:
        super().bind(motion, ctrl, fields)
        self._last: F64 = np.zeros(ctrl.shape)

    def control(self, action: Array) -> Array:
        self._last = np.clip(np.asarray(action, np.float64), -1.0, 1.0)
        control: Array = self._offset + self._scale * self._last
        return control

    def begin(self, ids: Sequence[int]) -> None:
        self._last = self._last.copy()
        self._last[ids] = 0.0

    def observe(self) -> F64:
        observed: F64 = self._layout.observe(self.qpos, self.qvel, self._last)
        return observed

    def transition(self, action: Array) -> Outcome:
        over = self._over(self.qpos, self.qvel) if self._terminates else None
        return np.zeros(len(action)), over, {}
