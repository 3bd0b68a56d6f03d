"""The few kernel calls that build the sandbox and that Python does not offer."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform

from p2p.sandbox import syscall_table

PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_machine = platform.machine()
_numbers = syscall_table.setup(_machine) if _machine in syscall_table.MACHINES else {}


class UnsupportedMachineError(OSError):
    """The sandbox has no system call table for this processor."""


def machine() -> str:
    """The processor's name, as the kernel gives it; raises where the sandbox does not know it."""
    if _machine not in syscall_table.MACHINES:
        known = ", ".join(syscall_table.MACHINES)
        raise UnsupportedMachineError(f"no system call table for {_machine}, only for {known}")
    return _machine


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(name: str, *args: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """Call the kernel; raises OSError where it refuses."""
    machine()
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    return _checked(_libc.syscall(ctypes.c_long(_numbers[name]), *words), name)


def prctl(option: int, value: int = 0, more: int = 0) -> int:
    """Set a property of the process, by whole numbers; raises OSError where the kernel refuses."""
    words = [ctypes.c_ulong(word) for word in (value, more, 0, 0)]
    return _checked(_libc.prctl(ctypes.c_int(option), *words), f"prctl {option}")


def mount(source: str | None, target: str, flags: int) -> None:
    """Bind a folder, or change how mounts propagate; no file system of its own."""
    result = _libc.mount(
        source.encode() if source is not None else None,
        os.fsencode(target),
        None,
        ctypes.c_ulong(flags),
        None,
    )
    _checked(result, f"mount {target}")


def drop_capabilities() -> None:
    """Give up every capability, for good: none is left to inherit or to regain."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # past the last one this kernel knows, or no right to lower the bound at all
    with contextlib.suppress(OSError):  # a kernel without ambient capabilities has none to clear
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    version_3_self = ctypes.create_string_buffer(b"\x22\x05\x08\x20" + bytes(4), 8)
    syscall("capset", version_3_self, ctypes.create_string_buffer(24))
