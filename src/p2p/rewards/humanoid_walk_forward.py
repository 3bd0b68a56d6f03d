"""Walk forward at a calm pace, upright and straight ahead."""

import numpy as np

ENV_ID = "Humanoid-v5"


def reward_fn(obs, action, next_obs, info):
    r"""Walk forward at a calm pace, upright and straight ahead.

    LaTeX: r = 2 \min(v_x, 1.5) - |v_y| + 2 (1 - 2 (q_x^2 + q_y^2)) + 3 - 0.1 \|a\|^2
    Terms:
        speed: forward speed, up to 1.5 m/s
        straight: cost of sideways speed
        upright: how far the torso's axis points up
        alive: for every step not fallen
        ctrl: cost of large actions
    """
    tilt_x, tilt_y = next_obs[..., 2], next_obs[..., 3]
    speed = 2.0 * np.minimum(info["x_velocity"], 1.5)
    straight = -np.abs(info["y_velocity"])
    upright = 2.0 * (1.0 - 2.0 * (np.square(tilt_x) + np.square(tilt_y)))
    alive = 3.0
    ctrl = -0.1 * np.sum(np.square(action), axis=-1)
    total = speed + straight + upright + alive + ctrl
    return total, {
        "speed": speed,
        "straight": straight,
        "upright": upright,
        "alive": alive,
        "ctrl": ctrl,
    }
