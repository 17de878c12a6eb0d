"""Facts about running processes, as the kernel tells them."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that still run."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(text) for text in (task / "children").read_text().split()]
    return found


def family(pid: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield pid
    for child in children(pid):
        yield from family(child)


def workers(pid: int) -> list[int]:
    """Return the worker processes of a service."""
    found = []
    for child in children(pid):
        command = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if b"app.worker" in command:
            found.append(child)
    return found


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process and all below it have used."""
    total = 0
    for each in family(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def read_bytes(pid: int) -> int:
    """Return the bytes that a process has read with system calls, from anywhere."""
    return _io(pid, "rchar")


def written_bytes(pid: int) -> int:
    """Return the bytes that a process has written with system calls, to anywhere."""
    return _io(pid, "wchar")


def _io(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        key, _, value = line.partition(": ")
        if key == name:
            return int(value)
    raise RuntimeError(f"the kernel does not tell {name}")


def memory(pid: int, name: str) -> int:
    """Return a line of /proc/PID/status (`VmRSS`, `VmHWM`, `RssAnon`) in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"the kernel does not tell {name}")


def forget_peak(pid: int) -> None:
    """Make `VmHWM` start again from what is resident now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def private_bytes(pid: int) -> int:
    """Return the resident bytes of a process without shared memory."""
    return memory(pid, "VmRSS") - memory(pid, "RssShmem")


class PeakWatch(threading.Thread):
    """Looks at processes' private memory all the time, and keeps the largest value of each.

    The kernel's own peak counts pages of the shared store too, which are no growth.
    """

    def __init__(self, *pids: int) -> None:
        super().__init__(daemon=True)
        self.peaks = {pid: private_bytes(pid) for pid in pids}
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.0005):
            for pid, peak in self.peaks.items():
                self.peaks[pid] = max(peak, private_bytes(pid))

    def finish(self) -> None:
        self._done.set()
        self.join()
