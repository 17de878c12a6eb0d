"""Types of the compiled resize."""

from typing import Any

from numpy.typing import NDArray

def resize(
    pictures: NDArray[Any], out: NDArray[Any], is_bicubic: bool, threads: int, /
) -> None: ...
