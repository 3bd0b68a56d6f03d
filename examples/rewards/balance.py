"""Keep the pole of a cart upright, on any simulator whose model has the cart's joint first.

`mj_data` has the same names and units on MuJoCo, mjlab and Isaac Lab; observations differ.
"""

import numpy as np


def reward_fn(obs, action, next_obs, info):
    """Upright, near the middle, at rest."""
    data = info["mj_data"]
    upright = np.cos(data.qpos[..., 1])
    centred = -0.05 * data.qpos[..., 0] ** 2
    calm = -0.005 * data.qvel[..., 1] ** 2
    return upright + centred + calm, {"upright": upright, "centred": centred, "calm": calm}
