"""Removing folders that are nested too deep, or closed, for the usual ways.

A sandboxed process can nest folders by the thousand; ``shutil.rmtree`` and ``rm`` then run out of
stack or of path. This keeps one folder open and walks down and up.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _split(directory: int) -> tuple[list[str], list[str]]:
    """Names of the folders and of everything else in an open folder."""
    folders: list[str] = []
    others: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            (folders if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
    return folders, others


def remove_subfolders(folder: Path) -> None:
    """Remove every folder below ``folder``, however deep, and all that is in them.

    Only for a folder whose owner is no longer running. Files of ``folder`` itself stay.
    """
    current = os.open(folder, _OPEN_FOLDER)
    names: list[str] = []
    left = [_split(current)[0]]
    while left:
        if left[-1]:
            names.append(left[-1].pop())
            os.chmod(names[-1], 0o700, dir_fd=current)  # it may have been made without any right
            current = _step(current, names[-1])
            folders, others = _split(current)
            for other in others:
                os.unlink(other, dir_fd=current)
            left.append(folders)
        else:
            left.pop()
            if names:
                current = _step(current, "..")
                os.rmdir(names.pop(), dir_fd=current)
    os.close(current)


def _step(current: int, name: str) -> int:
    try:
        return os.open(name, _OPEN_FOLDER, dir_fd=current)
    finally:
        os.close(current)
