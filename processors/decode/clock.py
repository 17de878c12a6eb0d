"""The wall time that one decode may take."""

from __future__ import annotations

import time

from processors.errors import MediaDecodeError


class Clock:
    """Ends a decode that takes too long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Go on.

        Raises:
            MediaDecodeError: If the time is over.
        """
        if time.monotonic() > self._end:
            raise MediaDecodeError(f"Decoding took longer than {self._seconds:g} s, the limit.")

    def stop(self) -> None:
        """Let nobody go on, whatever time is left."""
        self._end = 0.0
