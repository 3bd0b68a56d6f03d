"""Folders with environments of the user's own, for the sandbox and the renderer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from p2p.settings import get_settings

if TYPE_CHECKING:
    from pathlib import Path


def own_folders() -> tuple[Path, ...]:
    """The folders of P2P_ENV_PATH; from now on, this process imports from them, too.

    The sandbox may read all of such a folder, so it should hold environments and nothing private.
    """
    folders = get_settings().env_folders()
    sys.path += [str(folder) for folder in folders if str(folder) not in sys.path]
    return folders
