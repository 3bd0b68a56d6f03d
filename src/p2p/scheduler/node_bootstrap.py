"""The first thing that runs on a node: takes the package if it is not there, and hands over to it.

Its source is sent through standard input, so the node needs nothing but Python. Only the standard
library may be imported here. After it, `p2p.scheduler.node_agent` speaks over the same channel, in
the same form: a line with two lengths, and then so many bytes of JSON and of plain data.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

GREETING = b"p2p node agent 1\n"
"""What came before it was said by the node's shell, not by us."""
LONGEST = 256 * 2**20
"""What one message may hold."""
LOADER = "import sys;i=sys.stdin.buffer;exec(i.read(int(i.readline())),{'__name__':'__main__'})"
"""Given to `python -c`; reads the length of this source and the source."""

Message = tuple[dict[str, Any], bytes]


def packed(fields: dict[str, Any], data: bytes = b"") -> bytes:
    """A message as bytes."""
    text = json.dumps(fields).encode()
    return b"%d %d\n" % (len(text), len(data)) + text + data


def lengths(line: bytes) -> tuple[int, int]:
    """How long the parts of a message are, from its first line; raises ValueError for any other."""
    words = line.split()
    if len(words) != 2 or not all(word.isdigit() and len(word) < 12 for word in words):
        raise ValueError(f"{line[:200]!r} is not the beginning of a message")
    text, data = int(words[0]), int(words[1])
    if text + data > LONGEST:
        raise ValueError(f"a message of {text + data} bytes is too long")
    return text, data


def receive(stream: BinaryIO) -> Message | None:
    """The next message; None at the end."""
    line = stream.readline(100)
    if not line:
        return None
    length, more = lengths(line)
    text, data = stream.read(length), stream.read(more)
    if len(text) < length or len(data) < more:
        return None
    return json.loads(text), data


def send(stream: BinaryIO, fields: dict[str, Any], data: bytes = b"") -> None:
    """Say something."""
    stream.write(packed(fields, data))
    stream.flush()


def unpack(base: Path, digest: str, wheel: bytes) -> None:
    """Put the package into its folder; it is there whole or not at all."""
    if hashlib.sha256(wheel).hexdigest()[:32] != digest:
        raise ValueError("the package was damaged on its way")
    temporary = base / "packages" / f".{digest}.{secrets.token_hex(6)}.tmp"
    temporary.mkdir(parents=True)
    try:
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            archive.extractall(temporary)
        temporary.rename(base / "packages" / digest)
    except OSError:
        if not (base / "packages" / digest).is_dir():  # else somebody was faster
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def main() -> None:
    """Be greeted with the package's digest, see that it is there, and hand over."""
    arriving = sys.stdin.buffer
    leaving = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything prints from now on is no message
    leaving.write(GREETING)
    leaving.flush()
    hello = receive(arriving)
    if hello is None:
        return
    fields, _ = hello
    os.umask(0o077)
    base = Path(fields["base"])
    base.mkdir(parents=True, exist_ok=True)
    package = base / "packages" / fields["digest"]
    send(leaving, {"python": sys.version.split()[0], "needs_package": not package.is_dir()})
    if not package.is_dir():
        wheel = receive(arriving)
        if wheel is None:
            return
        unpack(base, fields["digest"], wheel[1])
    sys.path.insert(0, str(package))
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(package), inherited)))
    from p2p.scheduler.node_agent import serve

    serve(base, arriving, leaving)


if __name__ == "__main__":
    main()
