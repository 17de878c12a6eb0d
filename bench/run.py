"""The service beside the plain Hugging Face call: `python -m bench.run [--rounds N] [--quick]`.

Three processes: the service (over HTTP), the load generator, and the baseline, which calls the
processor as an engine would in-process. All see the same JPEGs, the same malloc settings and one
torch thread, and take turns, round by round, in one run. Prints medians with their quartiles and
the ratio to the baseline (above 1: better than it), and writes them as JSON with what is needed to
compare runs.

Sides:
    hf        decode and processor call, in the caller's process
    service   the same through POST /preprocess, every picture new to the service
    shm       likewise, features opened in shared memory
    repeat    the same picture again, features opened in shared memory
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.media import SIZES, make_jpeg
from processors.demo import demo_model_path
from tests.helpers.service import running

SEED = 0
PROMPT = "<|vision_start|><|image_pad|><|vision_end|>What is this?"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # Large buffers come back from the heap instead of fresh pages; the same for all sides.
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "2147483648",
    "MALLOC_TOP_PAD_": "67108864",
}
SERVICE = {"safetensors": "service", "shm": "shm"}


class Side:
    """A child that runs one order at a time."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ENVIRONMENT},
        )
        self._receive()

    def _receive(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"a side ended early with status {self._process.wait()}")
        return json.loads(line)

    def run(self, **order: Any) -> dict[str, Any]:
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._receive()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(30)


def rounds_of(
    hf: Side, load: Side, jpeg: Path, threads: int, calls: int, rounds: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each side's results, sides taking turns; the first round only warms up."""
    for turn in range(rounds + 1):
        order = {"jpeg": str(jpeg), "calls": calls, "threads": threads}
        results = [("hf", hf.run(**order))]
        for transport, side in SERVICE.items():
            results.append((side, load.run(**order, repeat=False, transport=transport)))
        results.append(("repeat", load.run(**order, repeat=True, transport="shm")))
        if turn:
            yield from results


def summarise(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians and quartiles of one side: milliseconds a request, and requests a second."""
    ms = [s * 1e3 for r in results for s in r["seconds"]]
    rates = [len(r["seconds"]) / r["wall"] for r in results]
    low, middle, high = statistics.quantiles(ms, n=4)
    told = [stages for r in results for stages in r.get("stages", ())]
    names = sorted({name for stages in told for name in stages})
    return {
        "ms": {"median": middle, "quartiles": [low, high], "samples": len(ms)},
        "per_second": {"median": statistics.median(rates), "range": [min(rates), max(rates)]},
        "stages_ms": {n: statistics.median(s.get(n, 0.0) for s in told) for n in names},
    }


def compare(
    hf: Side, load: Side, jpeg: Path, threads: int, calls: int, rounds: int
) -> dict[str, Any]:
    """One row: every side at one size and one number of callers, with ratios to the baseline."""
    found: dict[str, list[dict[str, Any]]] = {}
    for side, result in rounds_of(hf, load, jpeg, threads, calls, rounds):
        found.setdefault(side, []).append(result)
    row: dict[str, Any] = {side: summarise(results) for side, results in found.items()}
    for side in row:
        row[side]["latency_ratio"] = row["hf"]["ms"]["median"] / row[side]["ms"]["median"]
        row[side]["rate_ratio"] = (
            row[side]["per_second"]["median"] / row["hf"]["per_second"]["median"]
        )
    return row


def show(size: tuple[int, int], callers: int, row: Mapping[str, Any]) -> None:
    print(f"\n{size[0]}x{size[1]}, {callers} caller(s)")
    print(
        f"  {'':8s} {'ms a request (quartiles)':>30s} {'ratio':>7s} {'a second':>9s} {'ratio':>7s}"
    )
    for side, facts in row.items():
        ms, (low, high) = facts["ms"]["median"], facts["ms"]["quartiles"]
        spread = f"{ms:.1f} ({low:.1f} to {high:.1f})"
        rate = facts["per_second"]["median"]
        print(
            f"  {side:8s} {spread:>30s} {facts['latency_ratio']:6.2f}x {rate:9.1f} "
            f"{facts['rate_ratio']:6.2f}x",
            flush=True,
        )
    for side, facts in row.items():
        if stages := "  ".join(f"{n} {ms:.1f}" for n, ms in facts["stages_ms"].items()):
            print(f"    {side} told: {stages}", flush=True)


def facts() -> dict[str, Any]:
    """What must be known to compare two runs."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    names = ("transformers", "torch", "torchvision", "pillow", "simplejpeg", "numpy", "uvicorn")
    cpu = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
    return {
        "commit": git("rev-parse", "HEAD"),
        "is_dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        "cpu": cpu[0].partition(":")[2].strip() if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in names},
        "environment": ENVIRONMENT,
        "seed": SEED,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


@contextmanager
def sides() -> Iterator[tuple[Side, Side]]:
    """The baseline and the load generator beside a running service; all end with this."""
    # The child inherits what it must share with the baseline.
    os.environ.update(ENVIRONMENT)
    settings = {
        "MMPREP_WORKERS__PROCESSES": str(len(os.sched_getaffinity(0))),
        "MMPREP_WORKERS__SPARES": "0",
        "MMPREP_STORE__NBYTES": str(1 << 30),
        "MMPREP_STORE__GRACE_S": "0",
    }
    with running(env=settings) as service:
        hf = Side("bench.baseline", str(demo_model_path()), PROMPT)
        load = Side("bench.load", service.base_url, PROMPT)
        try:
            yield hf, load
        finally:
            hf.close()
            load.close()
            service.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=8, help="requests of each caller in a round")
    parser.add_argument("--quick", action="store_true", help="one small size, two rounds")
    parser.add_argument("--out", type=Path, default=Path("bench/results/service.json"))
    options = parser.parse_args()
    sizes = SIZES[:1] if options.quick else SIZES
    rounds = 2 if options.quick else options.rounds
    cores = len(os.sched_getaffinity(0))
    about, rows = facts(), []
    with tempfile.TemporaryDirectory() as folder, sides() as (hf, load):
        for size in sizes:
            jpeg = Path(folder) / f"{size[0]}x{size[1]}.jpg"
            jpeg.write_bytes(make_jpeg(*size, SEED))
            for callers in (1, min(8, 2 * cores)):
                row = compare(hf, load, jpeg, callers, options.calls, rounds)
                show(size, callers, row)
                rows.append({"size": size, "callers": callers, "bytes": jpeg.stat().st_size, **row})
    options.out.parent.mkdir(parents=True, exist_ok=True)
    document = {"facts": {**about, "rounds": rounds, "calls": options.calls}, "rows": rows}
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\nwrote {options.out}")


if __name__ == "__main__":
    main()
