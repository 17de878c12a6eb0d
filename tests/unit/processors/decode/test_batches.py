"""How the runs of a video are shared among threads, and how that ends."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from processors.decode import batches, packet_index
from processors.decode.batches import BatchDecoder
from processors.decode.clock import Clock
from processors.decode.container import Track, is_indexed, open_video, rewound
from processors.decode.frames import FrameBuffer
from processors.decode.packet_index import index_packets
from processors.decode.sniff import Container, sniff
from processors.errors import MediaDecodeError
from processors.types import DecodeLimits

SMALL = Path(__file__).parents[3] / "resources" / "media"
DATA = (SMALL / "odd_25_frames.mp4").read_bytes()
NUM_FRAMES = 25
NUM_PIXELS = 96 * 64
LIMITS = DecodeLimits()
ALONE = threading.main_thread().name


class WatchedBuffer(FrameBuffer):
    """Says which threads converted its frames."""

    def __init__(self, wanted: Sequence[int], limits: DecodeLimits) -> None:
        super().__init__(wanted, limits)
        self.threads: set[str] = set()

    def took(self, index: int, time_s: float) -> None:
        """Note the thread."""
        self.threads.add(threading.current_thread().name.split("_")[0])
        super().took(index, time_s)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads decode what is too small to be worth it."""
    monkeypatch.setattr(batches, "_LEAST_PIXELS", 0)
    monkeypatch.setattr(packet_index, "_LEAST_PACKETS", 1)


@contextmanager
def opened(
    wanted: Sequence[int], limits: DecodeLimits, clock: Clock
) -> Iterator[tuple[BatchDecoder, Track]]:
    kind = sniff(DATA)
    assert isinstance(kind, Container)
    assert is_indexed(kind)
    with open_video(DATA, kind, limits) as (container, stream):
        index = index_packets(container, stream, Clock(60.0))
        with rewound(container, stream, DATA, kind, limits) as track:
            yield BatchDecoder(index, WatchedBuffer(wanted, limits), limits, clock), track


def threads_of(
    num_threads: int,
    wanted: Sequence[int] = range(NUM_FRAMES),
    limits: DecodeLimits = LIMITS,
) -> set[str]:
    with opened(wanted, limits, Clock(60.0)) as (decoder, track):
        decoder.decode(track, can_seek=True, num_threads=num_threads)
        assert isinstance(decoder.buffer, WatchedBuffer)
        assert decoder.buffer.finish().indices == tuple(wanted)
        return decoder.buffer.threads


def test_threads_decode_where_there_are_some() -> None:
    """A thread that is alone decodes where it is; others are begun for it and end with it."""
    before = threading.active_count()
    assert threads_of(1) == {ALONE}
    assert threads_of(2) == {"decode"}
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (batches, "_LEAST_PIXELS", NUM_PIXELS + 1),
        (batches, "_HELD_PACKETS", 2),
        (packet_index, "_LEAST_PACKETS", NUM_FRAMES),
    ],
)
def test_what_is_small_or_long_needs_none(
    module: object, name: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads are not worth it for small frames or few, and do not hold many packets."""
    monkeypatch.setattr(module, name, value)
    assert threads_of(2) == {ALONE}


@pytest.mark.parametrize(("frames", "threads"), [(8, {"decode"}), (7, {ALONE})])
def test_decoders_hold_no_more_than_frames_may(frames: int, threads: set[str]) -> None:
    """Where two of them would, one decodes after another."""
    limits = DecodeLimits(max_pixels=frames * NUM_PIXELS)
    assert threads_of(2, (0, NUM_FRAMES - 1), limits) == threads


def test_the_time_ends_all_threads() -> None:
    """Nobody decodes on when the time is over."""
    clock = Clock(60.0)
    with opened(range(NUM_FRAMES), LIMITS, clock) as (decoder, track):
        clock.stop()
        with pytest.raises(MediaDecodeError, match="took longer"):
            decoder.decode(track, can_seek=True, num_threads=2)
        assert decoder.buffer.num_wanted == NUM_FRAMES
