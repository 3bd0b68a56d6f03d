"""Write what tests need of a Unitree G1: facts of its environment, and poses in which it cheats.

P2P_ENGINES_DIR=FOLDER python tests/agents/builtin/unitree_g1/record.py

It needs the engine mjlab (`p2p engines install mjlab`); tests read the two files that it writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from p2p.training.engines.facts import read_facts
from p2p.training.specs.quantities import Robot, compute
from p2p.training.video.scene import open_model

ENV = "Mjlab-Velocity-Flat-Unitree-G1"
HERE = Path(__file__).parent
SIT = {"left_hip_pitch_joint": -1.6, "right_hip_pitch_joint": -1.6}
POSES: dict[str, tuple[tuple[float, float], dict[str, float]]] = {
    "stands": ((0.0, 0.0), {}),
    "lies on its back": ((0.0, -1.45), {}),
    "sits": ((0.0, -0.2), SIT),
    "lies on its side": ((1.5, 0.0), {}),
}
"""Roll and pitch of the pelvis in rad, and joints that differ from those of the start."""
SETTLE_S = 2.0
MEASURED = ("foot_contact", "ground_contact", "penetration", "body_position")


def pose(
    model: mujoco.MjModel, robot: Robot, roll: float, pitch: float, joints: dict[str, float]
) -> dict[str, Any]:
    """The pose as it comes to rest with its joints held, and what is measured of it."""
    data = mujoco.MjData(model)
    data.qpos[:] = robot.qpos
    quat = np.zeros(4)
    mujoco.mju_euler2Quat(quat, np.array([roll, pitch, 0.0]), "XYZ")
    data.qpos[:7] = [0.0, 0.0, 2.0, *quat]
    for name, angle in joints.items():
        data.joint(f"robot/{name}").qpos[0] = angle
    mujoco.mj_forward(model, data)
    solid = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    ground = np.flatnonzero(solid & (model.body_weldid[model.geom_bodyid] == 0)).tolist()
    parts = np.flatnonzero(solid & (model.body_weldid[model.geom_bodyid] != 0)).tolist()
    gap = min(
        mujoco.mj_geomDistance(model, data, g, part, 5.0, None) for g in ground for part in parts
    )
    data.qpos[2] -= gap + 0.001
    model.qpos_spring[:] = data.qpos
    model.jnt_stiffness[1:], model.dof_damping[6:] = 200.0, 10.0
    for _ in range(round(SETTLE_S / model.opt.timestep) if roll or pitch else 0):
        mujoco.mj_step(model, data)
    mujoco.mj_forward(model, data)
    values = compute(robot, MEASURED, lambda field: np.asarray(getattr(data, field)))
    columns = {"qpos": data.qpos, "xquat": data.xquat, **values}
    return {name: np.round(np.asarray(value, float), 4).tolist() for name, value in columns.items()}


def main() -> None:
    spec = json.loads((read_facts("mjlab", ENV) / "spec.json").read_text())
    (HERE / "spec.json").write_text(json.dumps(spec, separators=(",", ":")) + "\n")
    model, _ = open_model(ENV)
    start = model.key_qpos[0] if model.nkey else model.qpos0
    robot = Robot(model, np.asarray(start, np.float64), float(spec["dt"]))
    poses = {
        name: pose(model, robot, roll, pitch, joints)
        for name, ((roll, pitch), joints) in POSES.items()
    }
    (HERE / "poses.json").write_text(json.dumps(poses, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
