"""The loader: sources that need no network, side by side, without blocking the loop."""

import asyncio
import base64
import os
from pathlib import Path

import blake3
import pytest

from app.loading.errors import SourceForbiddenError
from app.staging import QUICK_BYTES
from processors.errors import InvalidRequestError, MediaTooLargeError
from processors.types import Modality
from tests.helpers.loading import Loading, run_loader

BODY = bytes(range(251)) * (QUICK_BYTES // 251 + 1)  # more than is decoded on the loop
MAX = 2 << 20


async def load(loading: Loading, source: str, max_bytes: int = MAX) -> bytes:
    staged = await loading.loader.load(source, modality=Modality.IMAGE, max_bytes=max_bytes)
    with staged:
        assert staged.digest == blake3.blake3(staged.view()).digest()
        return bytes(staged.view())


async def test_base64_is_staged() -> None:
    """Bare base64 and data URIs give the same bytes and the same digest."""
    text = base64.b64encode(BODY).decode()
    async with run_loader() as loading:
        for source in (text, f"data:image/jpeg;base64,{text}", text.rstrip("=")):
            assert await load(loading, source) == BODY
        assert await load(loading, "data:,a%20b") == b"a b"
        assert await load(loading, "") == b""
        assert loading.held_bytes == 0


async def test_files_are_staged(tmp_path: Path) -> None:
    """Files below a root, empty ones included."""
    (tmp_path / "a b.jpg").write_bytes(BODY)
    (tmp_path / "empty").write_bytes(b"")
    async with run_loader(roots=(tmp_path,)) as loading:
        assert await load(loading, f"file://{tmp_path}/a%20b.jpg") == BODY
        assert await load(loading, f"file://{tmp_path}/empty") == b""


async def test_files_are_off_by_default(tmp_path: Path) -> None:
    """Without roots a file URL is 403, whatever it names."""
    async with run_loader() as loading:
        for path in (tmp_path, "/etc/passwd"):
            with pytest.raises(SourceForbiddenError):
                await load(loading, f"file://{path}")


async def test_limits_hold_for_every_kind(tmp_path: Path) -> None:
    """One byte too many is 413, and nothing stays held."""
    (tmp_path / "a").write_bytes(bytes(11))
    async with run_loader(roots=(tmp_path,)) as loading:
        for source in (
            base64.b64encode(bytes(11)).decode(),
            "data:," + "x" * 11,
            f"file://{tmp_path}/a",
        ):
            assert len(await load(loading, source, max_bytes=11)) == 11
            with pytest.raises(MediaTooLargeError):
                await load(loading, source, max_bytes=10)
        assert loading.held_bytes == 0


@pytest.mark.parametrize("source", ["image.jpg", "ftp://a/b", "AAAAA", "data:image/png;base64"])
async def test_what_is_no_source_holds_nothing(source: str) -> None:
    """A mistake costs no memory."""
    async with run_loader() as loading:
        with pytest.raises(InvalidRequestError):
            await load(loading, source)
        await asyncio.sleep(0)
        assert loading.held_bytes == 0


async def test_a_pipe_swapped_in_for_a_file_does_not_hang(tmp_path: Path) -> None:
    """A FIFO is refused, not waited for."""
    os.mkfifo(tmp_path / "pipe")
    async with run_loader(roots=(tmp_path,)) as loading:
        with pytest.raises(SourceForbiddenError):
            await load(loading, f"file://{tmp_path}/pipe")


async def test_cancelling_while_a_thread_decodes_is_safe() -> None:
    """What is cancelled is let go as soon as its thread is done."""
    body = bytes(QUICK_BYTES + 1)  # fewer are decoded at once, without a thread
    text = base64.b64encode(body).decode()
    async with run_loader() as loading:
        tasks = [asyncio.create_task(load(loading, text)) for _ in range(6)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(r, asyncio.CancelledError) for r in results)
        assert await load(loading, text) == body
