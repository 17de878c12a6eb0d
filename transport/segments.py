"""Segments of POSIX shared memory: made, locked, found and mapped by name.

A segment is a plain file in a memory file system (`/dev/shm`), opened and mapped by hand: the
standard library's `SharedMemory` registers with a tracker that deletes segments of live owners.
Its owner holds an exclusive `flock` on it for as long as it lives, whatever ends it; so who can
take the lock has found what a dead instance left behind, and may remove it.

Names are `mmprep-<instance>-<purpose>-<number>`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import stat
import threading
from pathlib import Path

from transport.errors import FeatureLost, SegmentError

DEFAULT_DIRECTORY = "/dev/shm"  # noqa: S108 - shared memory is what we want
PREFIX = "mmprep-"
PAGE_BYTES = 4096
CONTROL_BYTES = 64
"""A region's control block: u64 generation (odd = being written), u64 nbytes, zeros."""

_NAME = re.compile(r"mmprep-[0-9a-z]{1,32}-[0-9a-z]{1,32}-[0-9]{1,4}")


def segment_name(instance: str, purpose: str, number: int) -> str:
    """Return a segment's name.

    Raises:
        SegmentError: If instance or purpose hold other than lower-case letters and digits.
    """
    return checked_name(f"{PREFIX}{instance}-{purpose}-{number}")


def checked_name(name: str) -> str:
    """Return the name if it is one of ours, so that no path is ever opened by mistake.

    Raises:
        SegmentError: If it is not.
    """
    if not _NAME.fullmatch(name):
        raise SegmentError("this is not the name of one of our segments")
    return name


class OwnedSegment:
    """A segment this process made: allocated, pre-faulted, mapped and locked.

    Args:
        name: As `segment_name` makes it.
        nbytes: Size; fixed for life.
        directory: Where; a memory file system.
        mode: Permission bits of the file; others need to read it to use the features.
        group: Numeric group that shall own the file, or None to leave it.

    Raises:
        SegmentError: If it cannot be made; above all if the memory file system has no room.
    """

    def __init__(
        self, name: str, nbytes: int, *, directory: str, mode: int = 0o600, group: int | None = None
    ) -> None:
        self.name = checked_name(name)
        self.nbytes = nbytes
        self._path = os.path.join(directory, name)
        try:
            self._fd = _create_locked(self._path)
        except OSError as exc:
            raise SegmentError(f"cannot create a shared-memory segment: {exc.strerror}") from exc
        try:
            self._map = self._allocate(mode, group)
        except OSError as exc:
            self._remove()
            raise SegmentError(_why_not_allocated(exc, nbytes, directory)) from exc
        self.view = memoryview(self._map)
        self.words = self.view.cast("Q")
        """The same bytes as u64 words: storing one is a single store, never seen half-done."""

    def close(self) -> None:
        """Unlink the segment and give up the lock; what others have mapped stays theirs."""
        self.words.release()
        self.view.release()
        # A slice still held (a write buffer that drains) keeps the mapping until it is dropped.
        with contextlib.suppress(BufferError):
            self._map.close()
        self._remove()

    def _allocate(self, mode: int, group: int | None) -> mmap.mmap:
        # Allocated here and now: a full file system is an error now, not a SIGBUS at some write.
        os.posix_fallocate(self._fd, 0, self.nbytes)
        if group is not None:
            os.fchown(self._fd, -1, group)
        os.fchmod(self._fd, mode)
        return mmap.mmap(self._fd, self.nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)

    def _remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._fd)


def _create_locked(path: str) -> int:
    """Create a file and lock it, however often a cleaner gets in between."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)


def _why_not_allocated(exc: OSError, nbytes: int, directory: str) -> str:
    if exc.errno != errno.ENOSPC:
        return f"cannot allocate {nbytes} bytes of shared memory: {exc.strerror}"
    free = os.statvfs(directory)
    return (
        f"the shared-memory file system has {free.f_bavail * free.f_frsize} bytes free and the "
        f"store needs {nbytes}: make it larger (docker: --shm-size, Kubernetes: an emptyDir with "
        "medium Memory) or the store smaller"
    )


def remove_dead_segments(directory: str = DEFAULT_DIRECTORY) -> list[str]:
    """Remove the segments whose owners are dead, and nothing else.

    Segments that are locked, of another user, or not regular files are left alone.

    Returns:
        Names of what was removed.
    """
    return [
        entry.name
        for entry in sorted(Path(directory).glob(f"{PREFIX}*"))
        if _NAME.fullmatch(entry.name) and _remove_if_dead(str(entry))
    ]


def _remove_if_dead(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False  # gone meanwhile, a link, or not ours to touch
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Only now: between the listing and the lock the name may have become another file.
        if not os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False)):
            return False
        os.unlink(path)
    except OSError:
        return False  # locked: its owner lives; or gone meanwhile
    finally:
        os.close(fd)
    return True


class SegmentMap:
    """Segments of another process, mapped once each: what workers and consumers use.

    Safe to share between threads; the first `view` of a segment maps it. Segments whose file is
    gone are unmapped when the next one is opened, so that a consumer that outlives many servers
    does not keep their memory.

    Args:
        directory: Where segments live.
        writable: Map for writing (workers); else read-only.
        populate: Map all pages at once, which takes a moment and saves a fault per page later.
    """

    def __init__(
        self,
        directory: str = DEFAULT_DIRECTORY,
        *,
        writable: bool = False,
        populate: bool = False,
    ) -> None:
        self._directory = directory
        self._flags = os.O_RDWR if writable else os.O_RDONLY
        self._prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._populate = mmap.MAP_POPULATE if populate else 0
        self._lock = threading.Lock()
        self._maps: dict[str, mmap.mmap] = {}

    def view(self, segment: str, offset: int, nbytes: int) -> memoryview:
        """Return a view of a part of a segment; read-only unless the map is writable.

        Raises:
            FeatureLost: If there is no such segment.
            SegmentError: If the name is not one of ours, the part lies outside, or opening it is
                not permitted.
        """
        whole = self._open(segment)
        if offset < 0 or nbytes < 0 or offset + nbytes > whole.nbytes:
            raise SegmentError("this part lies outside of the segment")
        return whole[offset : offset + nbytes]

    def generation(self, segment: str, offset: int) -> int:
        """Return the generation word of the region that starts at `offset`; odd = being written.

        Raises:
            FeatureLost: If there is no such segment.
            SegmentError: As for `view`.
        """
        return self.word(segment, offset - CONTROL_BYTES)

    def word(self, segment: str, offset: int) -> int:
        """Return the u64 at `offset`, read in one go.

        Raises:
            FeatureLost: If there is no such segment.
            SegmentError: As for `view`, or if the offset is not a multiple of 8.
        """
        if offset % 8:
            raise SegmentError("a word starts on a multiple of 8")
        return int(self.view(segment, offset, 8).cast("Q")[0])

    def close(self) -> None:
        """Unmap everything that nobody holds a view of."""
        with self._lock:
            for name in list(self._maps):
                self._drop(name)

    def _open(self, name: str) -> memoryview:
        with self._lock:
            if name not in self._maps:
                self._drop_gone()
                self._maps[name] = self._map(checked_name(name))
            return memoryview(self._maps[name])

    def _map(self, name: str) -> mmap.mmap:
        path = os.path.join(self._directory, name)
        try:
            fd = os.open(path, self._flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as exc:
            raise FeatureLost("the segment is gone: its server has stopped or restarted") from exc
        except OSError as exc:
            raise SegmentError(f"cannot open the shared-memory segment: {exc.strerror}") from exc
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode) or info.st_size == 0:
                raise SegmentError("this is not a shared-memory segment")
            flags = mmap.MAP_SHARED | self._populate
            return mmap.mmap(fd, info.st_size, flags=flags, prot=self._prot)
        finally:
            os.close(fd)

    def _drop_gone(self) -> None:
        for name in list(self._maps):
            if not os.path.exists(os.path.join(self._directory, name)):
                self._drop(name)

    def _drop(self, name: str) -> None:
        # Views handed out keep it mapped; it is tried again next time.
        with contextlib.suppress(BufferError):
            self._maps[name].close()
            del self._maps[name]
