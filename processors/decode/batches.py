"""Batches of a video's runs, each decoded by a decoder of its own, several at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

from processors.decode.clock import Clock
from processors.decode.container import FFMPEG_ERRORS, AvObject, Track, new_decoder
from processors.decode.frames import FrameBuffer
from processors.decode.packet_index import PacketIndex, Run, find_runs, split_runs
from processors.decode.runs import RunReader, TimedFrame, decode_run, take
from processors.types import DecodeLimits

_LEAST_PIXELS = 100_000
"""Pixels of a frame that takes much longer to decode than threads take to have their turns."""
_HELD_PICTURES = 4
"""Pictures that a decoder commonly holds for others to refer to."""
_HELD_PACKETS = 4096
"""Packets of a batch that may be held until a thread decodes them."""


@dataclass(frozen=True, slots=True)
class BatchDecoder:
    """Decodes what the wanted frames of a video need, and nothing between.

    Every batch has a new decoder, so that its frames depend on its own packets alone: what becomes
    of a video, and of a broken one, does not depend on the number of threads.
    """

    index: PacketIndex
    """Of the track's packets; it has times."""
    buffer: FrameBuffer
    limits: DecodeLimits
    clock: Clock

    def decode(self, track: Track, *, can_seek: bool, num_threads: int) -> None:
        """Decode the frames that are still to come; those that do not decode are not there after.

        Args:
            track: At the beginning.
            can_seek: Whether seeking meets packets.
            num_threads: Most threads to decode with.

        Raises:
            MediaDecodeError: If it takes too long.
            MediaTooLargeError: If the frames are too large.
        """
        pts = self.index.pts
        places = {pts[place]: place for place in self.buffer.wanted if 0 <= place < len(pts)}
        batches = split_runs(find_runs(self.index, places))
        reader = RunReader(track, self.clock, can_seek=can_seek)
        _, stream = track
        num_decoders = min(num_threads, self._most_decoders(stream, batches))
        if num_decoders > 1:
            self._decode_at_once(stream, reader, batches, places, num_decoders)
            return
        for batch in batches:
            packets = ((run, reader.read(run)) for run in batch)
            for timed in self._frames(stream, packets, places):
                take(timed, self.buffer)

    def _most_decoders(self, stream: AvObject, batches: Sequence[Sequence[Run]]) -> int:
        """Return how many decoders are worth while, and hold no more than the frames kept may."""
        num_pixels: int = stream.codec_context.width * stream.codec_context.height
        if num_pixels < _LEAST_PIXELS:
            return 1
        if any(sum(run.count for run in batch) > _HELD_PACKETS for batch in batches):
            return 1
        return min(len(batches), self.limits.max_pixels // max(1, _HELD_PICTURES * num_pixels))

    def _frames(
        self,
        stream: AvObject,
        batch: Iterable[tuple[Run, Iterable[AvObject]]],
        places: Mapping[int, int],
    ) -> Iterator[TimedFrame]:
        decoder = new_decoder(stream, self.limits)
        for run, packets in batch:
            for frame in decode_run(run, packets, decoder, self.clock):
                time_s = float((frame.pts - self.index.pts[0]) * stream.time_base)
                yield TimedFrame(frame, places[frame.pts], time_s)

    def _decode_at_once(
        self,
        stream: AvObject,
        reader: RunReader,
        batches: Sequence[Sequence[Run]],
        places: Mapping[int, int],
        num_decoders: int,
    ) -> None:
        """Read batches here, one after another, and decode them in threads.

        Errors come in the order in which they would without.
        """
        pending: deque[Future[None]] = deque()
        sized: list[Event] = []
        with ThreadPoolExecutor(num_decoders, "decode") as pool:
            try:
                for batch in batches:
                    if len(pending) == 2 * num_decoders:
                        pending.popleft().result()
                    packets = self._read(reader, batch, pending)
                    frames = self._frames(stream, packets, places)
                    earlier, is_sized = tuple(sized), Event()
                    sized.append(is_sized)
                    pending.append(pool.submit(self._take_all, frames, earlier, is_sized))
                for future in pending:
                    future.result()
            except BaseException:
                self.clock.stop()
                pool.shutdown(cancel_futures=True)
                raise

    def _read(
        self, reader: RunReader, batch: Sequence[Run], pending: Iterable[Future[None]]
    ) -> list[tuple[Run, Iterable[AvObject]]]:
        try:
            return [(run, list(reader.read(run))) for run in batch]
        except FFMPEG_ERRORS:
            for future in pending:
                future.result()
            raise

    def _take_all(
        self, frames: Iterable[TimedFrame], earlier: Sequence[Event], is_sized: Event
    ) -> None:
        """Convert a batch's frames; the first one of the first batch that has any sizes all."""
        try:
            for timed in frames:
                for event in earlier:
                    if self.buffer.size is not None:
                        break
                    event.wait()
                take(timed, self.buffer)
                is_sized.set()
        finally:
            is_sized.set()
