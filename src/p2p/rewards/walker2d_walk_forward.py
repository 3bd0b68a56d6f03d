"""Walk forward at about 1.5 m/s with an upright torso."""

import numpy as np

ENV_ID = "Walker2d-v5"


def reward_fn(obs, action, next_obs, info):
    r"""Walk forward at about 1.5 m/s with an upright torso.

    LaTeX: r = 2 e^{-(v_x - 1.5)^2} + e^{-5 \theta^2} - 0.02 \|a\|^2
    Terms:
        speed: closeness to 1.5 m/s
        upright: closeness to no lean
        ctrl: cost of large actions
    """
    lean = next_obs[..., 1]
    speed = 2.0 * np.exp(-np.square(info["x_velocity"] - 1.5))
    upright = np.exp(-5.0 * np.square(lean))
    ctrl = -0.02 * np.sum(np.square(action), axis=-1)
    return speed + upright + ctrl, {"speed": speed, "upright": upright, "ctrl": ctrl}
