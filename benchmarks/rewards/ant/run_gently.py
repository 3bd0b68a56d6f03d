"""Run forward, and count what it costs."""

import numpy as np


def reward_fn(obs, action, next_obs, info):
    r"""Run forward without large actions.

    LaTeX: r = v_x + u_z / 5 - \|a\|^2 / 10
    Terms:
        forward: velocity along +x
        upright: the torso's own z axis, how far up it points
        effort: cost of large actions
    """
    forward = info["com_velocity"][..., 0]
    upright = 0.2 * info["body_up"][..., 1, 2]
    effort = -0.1 * np.sum(np.square(action), axis=-1)
    return forward + upright + effort, {"forward": forward, "upright": upright, "effort": effort}
