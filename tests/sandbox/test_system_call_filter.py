"""The filter's program, run by a small interpreter for machines that are not at hand."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from p2p.sandbox import kernel, seccomp
from p2p.sandbox.seccomp import program

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PID = 4711
ALLOWED = 0


def _run(
    machine: str, number: int, *arguments: int, arch: int | None = None, gpu: bool = False
) -> int:
    """What the kernel answers: 0 for allowed, else the error number."""
    words = {0: number, 4: ARCH[machine] if arch is None else arch}
    for i in range(6):
        value = arguments[i] if i < len(arguments) else 0
        words[16 + 8 * i], words[20 + 8 * i] = value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF
    code, at, accumulator = program(machine, PID, gpu=gpu), 0, 0
    while True:
        operation, yes, no, constant = code[at]
        at += 1
        if operation == 0x20:
            accumulator = words[constant]
        elif operation == 0x54:
            accumulator &= constant
        elif operation == 0x06:
            return 0 if constant == 0x7FFF0000 else constant & 0xFFFF
        else:
            holds = {
                0x15: accumulator == constant,
                0x35: accumulator >= constant,
                0x45: bool(accumulator & constant),
            }[operation]
            at += yes if holds else no


@pytest.fixture(params=kernel.MACHINES)
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _number(machine: str, name: str) -> int:
    return kernel.numbers(f"{seccomp.ALLOWED};{seccomp.CHECKED}", machine)[name]


def test_the_program_fits_the_kernel_and_its_jumps(machine: str) -> None:
    code = program(machine, PID)
    assert len(code) <= 4096
    assert all(0 <= yes < 256 and 0 <= no < 256 for _, yes, no, _ in code)
    for number in range(600):  # every path ends in an answer
        _run(machine, number)


def test_plain_calls_are_allowed(machine: str) -> None:
    for number in kernel.numbers(seccomp.ALLOWED, machine).values():
        assert _run(machine, number) == ALLOWED


def test_only_threads_can_be_made(machine: str) -> None:
    clone = _number(machine, "clone")
    pthread = 0x3D0F00
    assert _run(machine, clone, pthread) == ALLOWED
    for flags in (17, 0x4111, 0, pthread | 0x10000000, pthread | 0x20000):
        assert _run(machine, clone, flags) == errno.EPERM
    for left_out in (0x100, 0x200, 0x400, 0x800, 0x10000):
        assert _run(machine, clone, pthread & ~left_out) == errno.EPERM
    assert _run(machine, 435, 0) == errno.ENOSYS  # clone3: its flags cannot be seen


def test_only_the_process_itself_can_be_signalled(machine: str) -> None:
    for name in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
        number = _number(machine, name)
        assert _run(machine, number, PID) == ALLOWED
        for other in (0, 1, PID + 1, -1, -PID):
            assert _run(machine, number, other) == errno.EPERM


def test_memory_that_no_limit_counts_is_refused(machine: str) -> None:
    mmap = _number(machine, "mmap")
    for flags, answer in ((0x22, 0), (0x01, 0), (0x02, 0), (0x20022, 0), (0x21, 1), (0x122, 1)):
        assert _run(machine, mmap, 0, 4096, 3, flags, -1) == answer * errno.EPERM


def test_descriptors_are_shared_and_locks_are_whole(machine: str) -> None:
    assert _run(machine, _number(machine, "close_range"), 3, 9, 0) == ALLOWED
    assert _run(machine, _number(machine, "close_range"), 3, 9, 2 | 4) == errno.EPERM
    assert _run(machine, _number(machine, "flock"), 3, 2) == ALLOWED
    for command in (6, 7, 37, 38):
        assert _run(machine, _number(machine, "fcntl"), 3, command) == errno.EPERM


def test_the_parent_death_signal_cannot_be_undone(machine: str) -> None:
    assert _run(machine, _number(machine, "prctl"), 1, 0) == errno.EPERM
    assert _run(machine, _number(machine, "prctl"), 15, 0) == ALLOWED


def test_calls_by_another_numbering_are_refused(machine: str) -> None:
    assert _run(machine, _number(machine, "read"), arch=0x40000003) == errno.EPERM
    assert _run(machine, 0x40000000) == errno.ENOSYS


def test_what_is_not_listed_is_refused(machine: str) -> None:
    sockets = {"x86_64": (41, 53, 42, 49), "aarch64": (198, 199, 203, 200)}[machine]
    programs = {"x86_64": (57, 58, 59, 322), "aarch64": (221, 281)}[machine]
    others = {"x86_64": (101, 165, 272, 321, 319), "aarch64": (117, 40, 97, 280, 279)}[machine]
    for number in (*sockets, *programs, *others):
        assert _run(machine, number) == errno.EPERM
    for number in (424, 425, 434, 438, 442, 444, 447, 500):
        assert _run(machine, number) == errno.ENOSYS


@pytest.mark.parametrize(
    ("machine_name", "header"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ],
)
def test_the_numbers_are_those_of_the_kernel_headers(machine_name: str, header: str) -> None:
    if not Path(header).is_file():
        pytest.skip("no kernel headers here")
    defined = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text())
    real = {name: int(number) for name, number in defined}
    real.setdefault("newfstatat", real.get("fstatat", -1))
    for table in (seccomp.ALLOWED, seccomp.CHECKED, seccomp.GPU_ALLOWED, kernel.SETUP):
        for name, number in kernel.numbers(table, machine_name).items():
            assert real[name] == number, name


def test_a_gpu_is_controlled_by_its_own_commands_only(machine: str) -> None:
    ioctl, mmap = _number(machine, "ioctl"), _number(machine, "mmap")
    allocate, register, begin, type_a_letter, attributes = (
        0xC020462B, 37, 0x30000001, 0x5412, 0x40086602,
    )  # fmt: skip
    for command in (allocate, register, begin):
        assert _run(machine, ioctl, 3, command, gpu=True) == ALLOWED
        assert _run(machine, ioctl, 3, command) == errno.ENOTTY
    for command in (type_a_letter, attributes):
        assert _run(machine, ioctl, 3, command, gpu=True) == errno.ENOTTY
    shared_and_anonymous, growing = 0x21, 0x122
    assert _run(machine, mmap, 0, 4096, 3, shared_and_anonymous, gpu=True) == ALLOWED
    assert _run(machine, mmap, 0, 4096, 3, shared_and_anonymous) == errno.EPERM
    assert _run(machine, mmap, 0, 4096, 3, growing, gpu=True) == errno.EPERM


def test_a_gpus_driver_may_wait_at_a_socket_that_nobody_reaches(machine: str) -> None:
    opened = _number(machine, "socket")
    unix, internet, stream, packets, close_on_exec = 1, 2, 1, 5, 0x80000
    assert _run(machine, opened, unix, packets | close_on_exec, gpu=True) == ALLOWED
    assert _run(machine, opened, unix, packets | close_on_exec) == errno.EPERM
    for domain, kind in ((unix, stream), (internet, stream), (internet, packets | close_on_exec)):
        assert _run(machine, opened, domain, kind, gpu=True) == errno.EPERM
    talking = {"x86_64": (42, 43, 44, 46, 45, 47, 288), "aarch64": (203, 202, 206, 211, 207, 212)}
    for number in talking[machine]:
        assert _run(machine, number, gpu=True) == errno.EPERM
