"""Files: below the roots, regular, whole; nothing else is ever opened."""

import os
from pathlib import Path

import pytest

from app.loading.errors import MediaUpstreamError, SourceForbiddenError
from app.loading.files import RootFolders
from processors.errors import InvalidRequestError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.jpg").write_bytes(b"inside")
    (folder / "deep" / "b.jpg").write_bytes(b"deeper")
    (tmp_path / "outside").write_bytes(b"secret")
    (tmp_path / "rootless").mkdir()
    (tmp_path / "rootless" / "c").write_bytes(b"secret")
    return folder


def read(roots: RootFolders, path: object) -> bytes:
    view = memoryview(bytearray(roots.measure(str(path))))
    assert roots.read_into(view, str(path)) == len(view)
    return bytes(view)


def test_files_below_a_root_are_read(root: Path) -> None:
    """At any depth, and by links that stay inside."""
    os.symlink(root / "deep", root / "link")
    os.symlink("a.jpg", root / "alias")
    roots = RootFolders([root])
    assert read(roots, root / "a.jpg") == b"inside"
    assert read(roots, root / "deep" / "b.jpg") == b"deeper"
    assert read(roots, root / "link" / "b.jpg") == b"deeper"
    assert read(roots, root / "alias") == b"inside"
    assert read(roots, f"{root}//deep/./b.jpg") == b"deeper"


def test_a_root_may_itself_be_a_link(root: Path, tmp_path: Path) -> None:
    """Paths are understood by the root's given and its real name."""
    os.symlink(root, tmp_path / "alias")
    roots = RootFolders([tmp_path / "alias"])
    assert read(roots, tmp_path / "alias" / "a.jpg") == b"inside"
    assert read(roots, root / "a.jpg") == b"inside"


@pytest.mark.parametrize(
    "path",
    ["outside", "rootless/c", "root/../outside", "root/deep/../../outside", "root/to_outside",
     "root/to_folder/c", "root/to_passwd", "root/absolute/etc/passwd", "root", "root/deep",
     "root/fifo", "root/to_zero", "root/to_socket"],
)  # fmt: skip
def test_nothing_else_is_read(root: Path, tmp_path: Path, path: str) -> None:
    """Traversal, links that leave, folders, FIFOs, devices and sockets are 403."""
    os.symlink(tmp_path / "outside", root / "to_outside")
    os.symlink(tmp_path / "rootless", root / "to_folder")
    os.symlink("/etc/passwd", root / "to_passwd")
    os.symlink("/", root / "absolute")
    os.symlink("/dev/zero", root / "to_zero")
    os.symlink("/proc/self/fd/0", root / "to_socket")
    os.mkfifo(root / "fifo")
    with pytest.raises(SourceForbiddenError) as caught:
        RootFolders([root]).measure(str(tmp_path / path))
    assert str(tmp_path) not in caught.value.message


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/proc/self/environ", "/dev/zero", "", "a.jpg", "/"]
)
def test_absolute_paths_elsewhere_are_forbidden(root: Path, path: str) -> None:
    """Whether they exist is not told."""
    with pytest.raises(SourceForbiddenError):
        RootFolders([root]).measure(path)


@pytest.mark.parametrize("name", ["none.jpg", "a.jpg/b", "x" * 300])
def test_missing_files_are_the_callers_mistake(root: Path, name: str) -> None:
    """Below a root, a name that leads nowhere is refused without repeating it."""
    with pytest.raises((InvalidRequestError, SourceForbiddenError)) as caught:
        RootFolders([root]).measure(str(root / name))
    assert name not in caught.value.message


def test_without_roots_nothing_is_read(root: Path) -> None:
    """The default serves no files."""
    with pytest.raises(SourceForbiddenError):
        RootFolders([]).measure(str(root / "a.jpg"))


def test_a_file_that_changes_its_size_is_not_served(root: Path) -> None:
    """Half of a new file and half of an old one would be neither."""
    roots = RootFolders([root])
    view = memoryview(bytearray(roots.measure(str(root / "a.jpg"))))
    (root / "a.jpg").write_bytes(b"longer than before")
    with pytest.raises(MediaUpstreamError):
        roots.read_into(view, str(root / "a.jpg"))


def test_no_descriptor_stays_open(root: Path) -> None:
    """Neither success nor refusal leaves one behind."""
    roots = RootFolders([root])
    os.symlink("/etc/passwd", root / "to_passwd")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        read(roots, root / "a.jpg")
        with pytest.raises(SourceForbiddenError):
            roots.measure(str(root / "to_passwd"))
    assert len(os.listdir("/proc/self/fd")) == before
