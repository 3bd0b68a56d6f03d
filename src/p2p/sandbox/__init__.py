"""The sandbox that code written by a model runs in: training, validation and judges alike.

``run_worker`` runs ``module.main(payload, send)`` in a process of its own that first confines
itself and only then imports the module, so that foreign code is called at full speed inside. The
wall is the kernel's and holds against machine code as well; nothing depends on what Python forbids.
With ``Sandbox.warm`` the process is forked from one that has imported modules of ours and nothing
else (``fork_server``); it then confines itself in the same way.

What it covers:

- Files. Landlock: Python, its libraries, this package and ``Sandbox.readable`` can be read, one
  folder can be written, the rest cannot be opened. Modes, owners, times and attributes of any file
  cannot be changed. In the folder, folders can be made but neither renamed nor removed, files not
  moved from one to another, and parts of files not locked. Where the kernel gives out mount
  namespaces, all but the folder is read-only and nothing in the folder can be loaded as a library.
  The folder is then a tmpfs of its own: what lay in it can be read, what is written is gone with
  the process unless the parent takes it from ``SandboxedProcess.folder``.
- The network. No socket of any family; besides, TCP by Landlock and an empty network namespace.
- Other processes. No new process or program; no signal, trace, memory access or change of limits
  to any other process. ``/proc`` shows the sandboxed process itself and no other, and none of the
  machine's connections. It can choose neither its priority nor its cores.
- Secrets. The environment is made anew; no descriptor but three pipes is passed on.
- Resources. Memory, CPU time, threads, file sizes, disk space, number of files, lines sent, wall
  clock and silence; each ends the process with a reason of its own. It dies with its parent. The
  kernel itself refuses addresses far beyond the memory, and disk space and files beyond the size of
  the tmpfs, which count as memory, too. Where this user may make cgroups (v2), it bounds all of the
  memory, what it keeps for the process included.
- Its results. ``read_result`` and ``read_arrays`` refuse links, special files, pickles and bombs,
  ``read_message`` what is no message.

Without Landlock or seccomp nothing is run (``SandboxUnavailable``). Namespaces come on top where
the kernel has them. ``layers`` says what this machine offers.

What it does not cover:

- Truth. The code shares a process with the trainer or judge that calls it: it can falsify its own
  metrics, policy and messages. The parent checks their form and never believes them further.
- Names, sizes, times and link targets of files can be asked for outside of the folder, too, and
  which process numbers are taken.
- World-readable libraries of the system, and whatever lies beside Python's packages, can be read.
- Bursts. Threads, memory within ``Sandbox.address_bytes`` and, without a tmpfs, disk space are
  looked at several times a second; what a process starts or writes in between is seen late. Without
  a tmpfs, deleted files that stay mapped end it, and so do more mappings than can be looked at and
  a look that takes long even while it is stopped.
- Without cgroups, memory that the kernel keeps for the process: pipes and page tables. Limits of
  the user and of the address space bound it to some 200 MiB.
- Misuse of what it was given: CPU time within its limits, and the covert channels of a shared
  processor. A machine with many sandboxes is protected from each, not from their sum.
- Bugs of the kernel. A virtual machine is the next wall.
- Graphics processors, where ``Sandbox.gpu`` opens them: their memory and time are not limited, and
  their driver is one more part of the kernel that foreign code can call. Else they are closed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2p.sandbox.ast_check import explain_problems as explain_problems
    from p2p.sandbox.ast_check import find_problems as find_problems
    from p2p.sandbox.launch import Layers as Layers
    from p2p.sandbox.launch import choose_unsafe_local as choose_unsafe_local
    from p2p.sandbox.launch import layers as layers
    from p2p.sandbox.launch import run_worker as run_worker
    from p2p.sandbox.launch import start as start
    from p2p.sandbox.launch import start_gpu as start_gpu
    from p2p.sandbox.limits import LIBRARIES_BYTES as LIBRARIES_BYTES
    from p2p.sandbox.limits import UNSAFE_LOCAL_WARNING as UNSAFE_LOCAL_WARNING
    from p2p.sandbox.limits import EndReason as EndReason
    from p2p.sandbox.limits import Sandbox as Sandbox
    from p2p.sandbox.limits import SandboxExit as SandboxExit
    from p2p.sandbox.limits import SandboxUnavailable as SandboxUnavailable
    from p2p.sandbox.limits import is_unsafe_local as is_unsafe_local
    from p2p.sandbox.limits import set_unsafe_local as set_unsafe_local
    from p2p.sandbox.limits import unsafe_local_flags as unsafe_local_flags
    from p2p.sandbox.process import SandboxedProcess as SandboxedProcess
    from p2p.sandbox.results import UntrustedResultError as UntrustedResultError
    from p2p.sandbox.results import copy_result as copy_result
    from p2p.sandbox.results import message_reader as message_reader
    from p2p.sandbox.results import read_arrays as read_arrays
    from p2p.sandbox.results import read_message as read_message
    from p2p.sandbox.results import read_result as read_result

_HOMES = {
    "ast_check": ("explain_problems", "find_problems"),
    "launch": ("Layers", "choose_unsafe_local", "layers", "run_worker", "start", "start_gpu"),
    "limits": (
        "LIBRARIES_BYTES", "UNSAFE_LOCAL_WARNING", "EndReason", "Sandbox", "SandboxExit",
        "SandboxUnavailable", "is_unsafe_local", "set_unsafe_local", "unsafe_local_flags",
    ),
    "process": ("SandboxedProcess",),
    "results": (
        "UntrustedResultError", "copy_result", "message_reader", "read_arrays", "read_message",
        "read_result",
    ),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    # The sandboxed process imports this package before it is confined: it must stay small.
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
