"""Types of the compiled mel levels."""

from typing import Any

from numpy.typing import NDArray

def mel(
    spectrum: NDArray[Any], filters: NDArray[Any], out: NDArray[Any], block: int, /
) -> bool: ...
