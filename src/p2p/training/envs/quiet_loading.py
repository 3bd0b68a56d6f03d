"""Loading a model without MuJoCo's remarks on the file that Gymnasium ships."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Inside, MuJoCo prints nothing and leaves no MUJOCO_LOG.TXT in the current folder.

    HalfCheetah's file uses an attribute that MuJoCo calls deprecated at every load; nobody who
    trains can do anything about that. Errors are exceptions and are not touched. Wrap loading
    only: what MuJoCo has to say while it simulates is worth hearing.
    """
    import mujoco

    usual = mujoco.MjLogConfig.get()
    silent = mujoco.MjLogConfig.get()
    silent.logto_console = silent.logto_file = False
    silent.set()
    try:
        yield
    finally:
        usual.set()
