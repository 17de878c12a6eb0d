"""The allocator's settings, tried in a process of its own."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os
from app import heap

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

print(heap.tune())
before = resident()
for _ in range(3):
    small = [bytes(700_000) for _ in range(20)]
    large = [bytearray(os.urandom(1 << 10) * 5000) for _ in range(20)]
    del large
    del small
print(resident() - before)
"""


def run(**env: str) -> tuple[str, int]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**plain, **env}, capture_output=True, check=True
    )
    tuned, grown = done.stdout.decode().split()
    return tuned, int(grown)


@pytest.mark.skipif(os.confstr("CS_GNU_LIBC_VERSION") is None, reason="no glibc")
def test_large_blocks_are_given_back() -> None:
    """After large blocks were let go of, no more than the small ones' memory stays."""
    tuned, grown = run()
    assert tuned == "True"
    assert grown < 40 << 20


def test_the_operators_settings_are_left_alone() -> None:
    """Whoever sets the allocator up by its variables knows why."""
    tuned, _ = run(MALLOC_TOP_PAD_="1048576")
    assert tuned == "False"
