"""Walk backward without falling."""

import numpy as np

ENV_ID = "Walker2d-v5"


def reward_fn(obs, action, next_obs, info):
    r"""Walk backward without falling.

    LaTeX: r = \mathrm{clip}(-v_x, -1, 2) + e^{-5 \theta^2} - 0.02 \|a\|^2
    Terms:
        speed: backward speed, up to 2 m/s
        upright: closeness to no lean
        ctrl: cost of large actions
    """
    lean = next_obs[..., 1]
    speed = np.clip(-info["x_velocity"], -1.0, 2.0)
    upright = np.exp(-5.0 * np.square(lean))
    ctrl = -0.02 * np.sum(np.square(action), axis=-1)
    return speed + upright + ctrl, {"speed": speed, "upright": upright, "ctrl": ctrl}
