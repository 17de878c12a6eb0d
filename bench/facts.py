"""What must be known to compare two runs, and the environment that all sides share."""

import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

SEED = 0
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # Large buffers come back from the heap instead of fresh pages; the same for all sides.
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "2147483648",
    "MALLOC_TOP_PAD_": "67108864",
}
LIBRARIES = (
    "transformers", "torch", "torchvision", "pillow", "simplejpeg", "av", "numpy", "uvicorn",
)  # fmt: skip


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


def machine_facts() -> dict[str, Any]:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    cpu = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
    return {
        "commit": git("rev-parse", "HEAD"),
        "is_dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        "cpu": cpu[0].partition(":")[2].strip() if cpu else platform.machine(),
        "cores": num_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in LIBRARIES},
        "environment": ENVIRONMENT,
        "seed": SEED,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
