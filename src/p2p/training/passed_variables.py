"""What a training run is given of the environment it is started from."""

from __future__ import annotations

PASSED_VARIABLES = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "XDG_RUNTIME_DIR",
    "MUJOCO_GL", "P2P_ENV_PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES",
    "P2P_LAUNCH_ID", "P2P_CORE_LOCKS",
)  # fmt: skip
"""Training needs no key and no token, so its environment has none."""
