"""Types of the compiled kernels."""

from typing import Any

from numpy.typing import NDArray

def patchify(
    frames: NDArray[Any],
    out: NDArray[Any],
    table: NDArray[Any],
    patch: int,
    merge: int,
    times: int,
    threads: int,
    /,
) -> None: ...
def planes(
    pixels: NDArray[Any], out: NDArray[Any], table: NDArray[Any], threads: int, /
) -> None: ...
def lookup(codes: NDArray[Any], out: NDArray[Any], table: NDArray[Any], run: int, /) -> None: ...
