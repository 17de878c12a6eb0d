"""G12: bytes written for each byte of a feature, counted on both ways to the consumer."""

from app.streaming import TAIL_BYTES
from bench.process import family, written_bytes
from bench.results import Found, Row, at_most
from bench.stand import Stand, image_recipe, post_order, require_good
from bench.stats import Spread

SIZE = (1920, 1080)
SHM_GOAL, BINARY_GOAL = at_most(1), at_most(2)


def measure(stand: Stand) -> Found:
    jpeg = stand.jpeg(*SIZE)
    made = stand.side("bench.copies", stand.model).run(file=str(jpeg))
    nbytes = made["nbytes"]
    count = stand.count(16)
    shm, _ = _written(stand, post_order(image_recipe(jpeg, "shm"), count))
    binary, _ = _written(
        stand, post_order(image_recipe(jpeg, "safetensors"), count, accept="binary")
    )
    # What the service writes beside the features (headers, ids, messages, logs) is in neither.
    sent = (binary - shm) / count / nbytes
    tail = min(TAIL_BYTES, nbytes) / nbytes
    written = made["mmprep"] / nbytes
    name = f"{SIZE[0]}x{SIZE[1]}"
    sides = {"hf": f"{made['hf'] / nbytes:.1f}"}
    unit = "bytes written a feature byte"
    return Found(
        rows=[
            Row(f"{name}, shared memory", _exact(written), unit, SHM_GOAL, sides),
            Row(
                f"{name}, binary body",
                _exact(written + sent + tail),
                unit,
                BINARY_GOAL,
                {
                    "into the region": f"{written:.3f}",
                    "into the socket": f"{sent:.3f}",
                    "private copy of the tail": f"{tail:.3f}",
                },
            ),
            Row(
                f"{name}, shared memory, through pipes and sockets",
                _exact(shm / count / nbytes),
                unit,
                note="messages, ids and logs; no features",
            ),
        ]
    )


def _written(stand: Stand, order: dict) -> tuple[int, int]:
    """Return the bytes that all of the service wrote for an order, and those of the answers."""
    pids = list(family(stand.service.pid))
    stand.load.run(**order)  # warms up
    before = sum(written_bytes(pid) for pid in pids)
    result = require_good(stand.load.run(**order))
    return sum(written_bytes(pid) for pid in pids) - before, result["nbytes"]


def _exact(value: float) -> Spread:
    """A count to two decimals; it has no spread."""
    value = round(value, 2)
    return Spread(value, value, value, 1)
