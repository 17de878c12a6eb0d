"""What a worker gives up before it touches hostile bytes (Linux).

Core dumps, privileges through exec, life beyond its parent, and the network: a seccomp filter,
which needs no privileges, denies every socket but local ones. Decoders need none of it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct

_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_AF_UNIX = 1
_EPERM = 1
_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _DENY = 0x7FFF0000, 0x00050000 | _EPERM
_OFFSET_NR, _OFFSET_ARCH, _OFFSET_ARG0 = 0, 4, 16
_X32_CALLS = 0x40000000
_IO_URING_SETUP = 425  # the same everywhere; it can open sockets past this filter
_ARCHITECTURES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""Machine to (audit architecture, number of the `socket` call)."""


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    Raises:
        SystemExit: If the parent has died already.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise SystemExit(0)


def give_up_privileges() -> None:
    """Never gain privileges by exec, never write a core dump full of somebody's media."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def give_up_network() -> bool:
    """Deny this process every socket but local ones; needs `give_up_privileges` first.

    Call it while there is one thread: the filter holds for it and what it starts.

    Returns:
        Whether the kernel agreed.
    """
    known = _ARCHITECTURES.get(platform.machine())
    if known is None:
        return False
    program = b"".join(struct.pack("<HBBI", *step) for step in _socket_filter(*known))
    loaded = _FilterProgram(len(program) // 8, program)
    return _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(loaded))


def bound_private_memory(nbytes: int) -> None:
    """Make allocations fail that grow private memory by more than this from here on."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _private_bytes() + nbytes
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _private_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["VmData"].split()[0]) * 1024


def _socket_filter(architecture: int, socket_call: int) -> list[tuple[int, int, int, int]]:
    """Return a BPF program: (code, steps to skip if true, if false, operand)."""
    return [
        (_LOAD, 0, 0, _OFFSET_ARCH),
        (_JUMP_EQUAL, 0, 7, architecture),
        (_LOAD, 0, 0, _OFFSET_NR),
        (_JUMP_GREATER_EQUAL, 5, 0, _X32_CALLS),
        (_JUMP_EQUAL, 4, 0, _IO_URING_SETUP),
        (_JUMP_EQUAL, 0, 2, socket_call),
        (_LOAD, 0, 0, _OFFSET_ARG0),
        (_JUMP_EQUAL, 0, 1, _AF_UNIX),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _DENY),
    ]


def _prctl(option: int, *arguments: int) -> bool:
    words = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    return int(ctypes.CDLL(None, use_errno=True).prctl(option, *words)) == 0
