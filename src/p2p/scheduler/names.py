"""Names and paths that may reach another machine: checked once, here, before anything is done.

Nothing that passes can be taken for an option, lead out of a folder, or mean anything to a shell.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

LONGEST = 128


def _no_way_up(path: str) -> str:
    if ".." in path.split("/"):
        raise ValueError(f"{path!r} leads out of its folder: `..` is not allowed")
    return path


Id = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$", max_length=LONGEST)
]
"""A job, a run or a node: letters, digits, `_` and `-`, single dots inside; also a file's name."""

HostName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?$", max_length=253)
]
"""A host's name or address."""

UserName = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]*$", max_length=32)]

AbsolutePath = Annotated[
    str, Field(pattern=r"^/[A-Za-z0-9._/-]*$", max_length=1024), AfterValidator(_no_way_up)
]
"""A path on a node, in characters that mean nothing to a shell."""

FolderName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$", max_length=512),
    AfterValidator(_no_way_up),
]
"""A folder below the runs folder, such as `bm_1f2e/case7`."""

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=LONGEST)]
"""The name of an environment variable."""
