"""Which layers of the sandbox this machine offers; what ``p2p doctor`` shows."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from p2p.sandbox.options import SandboxUnavailable


@dataclass(frozen=True, slots=True)
class Layers:
    """What holds in a sandbox on this machine, as found by building one."""

    landlock_abi: int
    """0: none. See ``landlock`` for what each version adds."""
    seccomp: bool
    namespaces: tuple[str, ...]
    """Of user, mount, ipc and network."""
    problem: str = ""
    """Why no sandbox can be built; empty where it can."""

    @property
    def available(self) -> bool:
        """Whether the required layers, Landlock and seccomp, are there."""
        return self.landlock_abi >= 1 and self.seccomp and not self.problem

    def describe(self) -> list[str]:
        """One line for each layer, for a person."""
        landlock = f"ABI {self.landlock_abi}" if self.landlock_abi else "missing"
        seccomp = "yes" if self.seccomp else "missing"
        network = "yes" if "network" in self.namespaces else "no"
        mount = "yes" if "mount" in self.namespaces else "no"
        lines = [
            f"Landlock: {landlock} (required; which files can be opened)",
            f"seccomp: {seccomp} (required; no network, no processes, few system calls)",
            f"network namespace: {network} (a second wall before the network)",
            f"mount namespace: {mount} (the same for files; no library loads from its folder)",
        ]
        return [*lines, self.problem] if self.problem else lines


def layers() -> Layers:
    """Build a sandbox, leave it, and say what held. Never raises."""
    from p2p.sandbox.launch import probe

    with tempfile.TemporaryDirectory(prefix="p2p-sandbox-") as folder:
        try:
            found = probe(Path(folder))
        except SandboxUnavailable as error:
            return Layers(*_parts(), (), str(error))
    return Layers(found["landlock_abi"], found["seccomp"], tuple(found["namespaces"]))


def _parts() -> tuple[int, bool]:
    from p2p.sandbox import landlock, seccomp

    return landlock.abi(), seccomp.available()
