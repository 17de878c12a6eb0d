"""Reading files below the configured roots, and nothing else.

The file is pinned before it is judged: opened as a mere path (`O_PATH`: no device is touched, no
FIFO waits), then checked for what it is and where it really lies, then opened for reading through
that very pin. Nobody can swap it in between. Symbolic links may lead anywhere below a root.

Blocking: disks; run it in a thread.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from app.loading.errors import MediaUpstreamError, SourceForbiddenError
from processors.errors import InvalidRequestError

_OUTSIDE = "Files may only be read below the configured roots (MMPREP_LOADING__ROOTS)."


class RootFolders:
    """The folders below which files may be read."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._given = tuple(str(root) for root in roots)
        self._real = tuple(os.path.realpath(root) for root in roots)

    def measure(self, path: str) -> int:
        """Return the size of a file.

        Raises:
            SourceForbiddenError: If it does not lie below a root, or is not a regular file.
            InvalidRequestError: If there is no such file.
        """
        with self._pinned(path) as pin:
            return os.fstat(pin).st_size

    def read_into(self, view: memoryview, path: str) -> int:
        """Read a whole file into memory of exactly its size and return that.

        Raises:
            SourceForbiddenError: As for `measure`.
            InvalidRequestError: As for `measure`.
            MediaUpstreamError: If it changed its size since, or cannot be read.
        """
        with self._pinned(path) as pin:
            try:
                fd = os.open(f"/proc/self/fd/{pin}", os.O_RDONLY | os.O_CLOEXEC)
            except PermissionError as error:
                raise SourceForbiddenError("The file must not be read.") from error
            try:
                return _read_all(fd, view)
            except OSError as error:
                raise MediaUpstreamError("The file cannot be read.", retryable=True) from error
            finally:
                os.close(fd)

    @contextmanager
    def _pinned(self, path: str) -> Iterator[int]:
        if ".." in path.split("/") or not _is_below(path, (*self._given, *self._real)):
            raise SourceForbiddenError(_OUTSIDE)
        pin = _pin(path)
        try:
            if not _is_below(os.readlink(f"/proc/self/fd/{pin}"), self._real):
                raise SourceForbiddenError(_OUTSIDE)
            if not stat.S_ISREG(os.fstat(pin).st_mode):
                raise SourceForbiddenError("Only regular files may be read.")
            yield pin
        finally:
            os.close(pin)


def _pin(path: str) -> int:
    try:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise InvalidRequestError("There is no such file below the configured roots.") from (
                error
            )
        raise SourceForbiddenError("The file must not be read.") from error
    except ValueError as error:
        raise InvalidRequestError("The path is not valid.") from error


def _is_below(path: str, roots: Sequence[str]) -> bool:
    return any(path.startswith(root.rstrip("/") + "/") for root in roots)


def _read_all(fd: int, view: memoryview) -> int:
    if os.fstat(fd).st_size != view.nbytes:
        raise MediaUpstreamError("The file changes while it is read.", retryable=True)
    done = 0
    while done < view.nbytes:
        count = os.readv(fd, [view[done:]])
        if count == 0:
            raise MediaUpstreamError("The file changes while it is read.", retryable=True)
        done += count
    return done
