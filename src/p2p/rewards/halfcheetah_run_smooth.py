"""Run forward with smooth actions; a class that remembers the last action."""

import numpy as np

from p2p.training.reward_function import RewardFunction

ENV_ID = "HalfCheetah-v5"


class SmoothRun(RewardFunction):
    """Run forward with smooth actions.

    The action before is kept for each environment. On the first step of an episode there is
    none, so the action itself takes its place and the change is zero.
    """

    def __init__(self):
        """Begin without a past."""
        self.last = 0.0

    def compute(self, obs, action, next_obs, info):
        """Speed less effort and less change of action."""
        first = np.asarray(info["_episode_start"])[..., None]
        change = action - np.where(first, action, self.last)
        self.last = np.array(action)

        speed = info["x_velocity"]
        ctrl = -0.05 * np.sum(np.square(action), axis=-1)
        smooth = -0.1 * np.sum(np.square(change), axis=-1)
        return speed + ctrl + smooth, {"speed": speed, "ctrl": ctrl, "smooth": smooth}

    @property
    def latex(self):
        """The formula."""
        return r"r_t = v_x - 0.05 \|a_t\|^2 - 0.1 \|a_t - a_{t-1}\|^2"

    @property
    def terms(self):
        """What the terms mean."""
        return {
            "speed": "forward speed",
            "ctrl": "cost of large actions",
            "smooth": "cost of changing the action",
        }
