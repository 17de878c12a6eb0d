"""G5: a stored feature of 23 MB reaches its consumer, in five ways that take turns."""

from bench.results import Found, Row, Target, at_least, at_most
from bench.stand import Stand
from bench.stats import spread

SHM_GOAL = at_most(1.0)
JSON_GOAL = at_least(50)
RATE_GOAL = at_least(2.0)
SOCKET_GOAL = at_least(1.0)
LABELS = {
    "shm": "shared memory",
    "copied": "shared memory, copied out",
    "features": "GET /features",
    "binary": "binary body over TCP",
    "unix": "binary body over a unix socket",
    "json": "JSON with base64",
    "client": "client library, shared memory",
}


def measure(stand: Stand) -> Found:
    side = stand.side("bench.handover", stand.service.base_url, str(stand.socket))
    told = side.run(rounds=stand.rounds(20))
    nbytes, times = told["nbytes"], told["ms"]
    ms = {way: spread(values) for way, values in times.items()}
    rates = {way: [nbytes / value / 1e6 for value in values] for way, values in times.items()}
    megabytes = f"{nbytes / 1e6:.0f} MB"
    versus_json = spread(_ratios(times["json"], times["shm"]))
    over_tcp = spread(_ratios(times["binary"], times["unix"]))
    rows: list[tuple[str, str, Target | None]] = [
        ("binary", "GB/s", RATE_GOAL),
        ("unix", "GB/s", None),
        ("features", "GB/s", None),
        ("copied", "GB/s", None),
        ("json", "GB/s", None),
    ]
    found = Found()
    found.rows += [
        Row(f"{megabytes} by {LABELS['shm']}", ms["shm"], "ms", SHM_GOAL),
        Row(
            f"{megabytes} by {LABELS['shm']}",
            versus_json,
            "x faster than JSON with base64",
            JSON_GOAL,
            {way: f"{ms[way].median:.2f} ms" for way in ("json", "shm")},
        ),
        *(
            Row(f"{megabytes} by {LABELS[way]}", spread(rates[way]), unit, target)
            for way, unit, target in rows
        ),
        Row(f"{megabytes} by {LABELS['unix']}", over_tcp, "x faster than over TCP", SOCKET_GOAL),
        Row(f"{megabytes} by {LABELS['client']}", ms["client"], "ms"),
    ]
    found.series["ms"] = {LABELS[way]: values for way, values in times.items()}
    return found


def _ratios(over: list[float], under: list[float]) -> list[float]:
    return [a / b for a, b in zip(over, under, strict=True)]
