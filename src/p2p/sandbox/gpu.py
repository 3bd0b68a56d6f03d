"""What a sandboxed process that computes on NVIDIA's GPUs needs besides: devices, facts, variables.

The driver's library talks to the device files by `ioctl` and maps their memory. It reads a few
facts of the kernel's, and nothing else of the machine. Which files there are is looked up outside.
"""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2p.sandbox.limits import is_unsafe_local

if TYPE_CHECKING:
    from collections.abc import Callable

CONTROL = Path("/dev/nvidiactl")
"""There wherever NVIDIA's driver is loaded and its devices are given to this process."""
_FACTS = (
    "/proc/driver/nvidia",
    "/proc/driver/nvidia-uvm",
    "/proc/devices",
    "/proc/modules",
    "/proc/version",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/vm/mmap_min_addr",
    "/proc/sys/vm/max_map_count",
    "/sys/devices/system/memory/block_size_bytes",
)
_LIBRARIES = ("/usr/local/cuda*", "/usr/local/nvidia", "/usr/share/nvidia", "/opt/nvidia")
_PCI = Path("/sys/bus/pci/devices")
_PCI_FACTS = (
    "class", "config", "device", "irq", "local_cpulist", "local_cpus", "numa_node", "revision",
    "subsystem_device", "subsystem_vendor", "uevent", "vendor",
)  # fmt: skip
_NVIDIA = "0x10de"


def present() -> bool:
    """Return whether this machine has an NVIDIA GPU whose driver answers here."""
    return CONTROL.exists()


def devices() -> list[str]:
    """The device files that CUDA opens, those of partitions (MIG) included."""
    found = [*Path("/dev").glob("nvidia*"), *Path("/dev/nvidia-caps").glob("*")]
    return sorted(str(path) for path in found if path.is_char_device())


def readable() -> list[str]:
    """Facts and libraries: files and folders that it may read."""
    libraries = [str(path) for name in _LIBRARIES for path in Path("/").glob(name[1:])]
    return [*_FACTS, *libraries, *_library_path(), *_pci_facts()]


def listable() -> list[str]:
    """Folders whose names it may list, and nothing in them read."""
    return [str(_PCI)]


def _pci_facts() -> list[str]:
    """Return the paths of the GPUs' PCI facts alone: other files are device memory."""
    found = []
    for device in sorted(_PCI.glob("*")):
        try:
            if (device / "vendor").read_text().strip() != _NVIDIA:
                continue
        except OSError:
            continue
        found += [str((device / name).resolve()) for name in _PCI_FACTS]
    return found


def _library_path() -> list[str]:
    """The folders of LD_LIBRARY_PATH with the driver's library, where it lies out of the way."""
    entries = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    return [entry for entry in entries if (Path(entry) / "libcuda.so.1").exists()]


def environment() -> dict[str, str]:
    """Its variables: which GPUs the caller may see, and no cache of its own beside the folder."""
    env = {"CUDA_CACHE_DISABLE": "1", "CUDA_MODULE_LOADING": "LAZY"}
    names: tuple[str, ...] = (
        "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES",
    )  # fmt: skip
    if is_unsafe_local():  # a sandboxed process reaches no daemon
        names = (*names, "CUDA_MPS_PIPE_DIRECTORY")
    env |= {name: os.environ[name] for name in names if name in os.environ}
    if paths := _library_path():
        env["LD_LIBRARY_PATH"] = ":".join(paths)
    return env


def main(_: dict[str, Any], send: Callable[[bytes], None]) -> None:
    """In the sandbox: start CUDA's driver, and send the names of its GPUs or what it answered."""
    driver = ctypes.CDLL("libcuda.so.1")
    text, count, name = ctypes.c_char_p(), ctypes.c_int(), ctypes.create_string_buffer(128)

    def call(function: str, *arguments: Any) -> None:
        if code := getattr(driver, function)(*arguments):
            driver.cuGetErrorString(code, ctypes.byref(text))
            raise OSError(f"{function} answers {code}: {(text.value or b'').decode()}")

    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(count))
    names = []
    for device in range(count.value):
        call("cuDeviceGetName", name, len(name), device)
        names.append(name.value.decode())
    send(json.dumps(names).encode())
