"""The plain Hugging Face call, in a process of its own that is told by lines what to do.

Reads `{"jpeg": path, "calls": n, "threads": n}` per line, answers
`{"seconds": [...], "wall": s, "tokens": n, "bytes": n}`: what an engine does in-process for each
request, from encoded bytes to tensors.
"""

import io
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoProcessor

from bench.media import distinct


def main() -> None:
    directory, prompt = sys.argv[1:]
    torch.set_num_threads(1)
    # One processor for each thread: fast tokenizers may not be shared.
    processors = [AutoProcessor.from_pretrained(directory) for _ in range(8)]

    def call(job: tuple[int, list[bytes]]) -> list[float]:
        number, jpegs = job
        times = []
        for jpeg in jpegs:
            start = time.perf_counter()
            image = Image.open(io.BytesIO(jpeg)).convert("RGB")
            processors[number](text=[prompt], images=[image], return_tensors="pt")
            times.append(time.perf_counter() - start)
        return times

    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        source = distinct(Path(order["jpeg"]).read_bytes())
        jobs = [
            (number, [next(source) for _ in range(order["calls"])])
            for number in range(order["threads"])
        ]
        with ThreadPoolExecutor(order["threads"]) as executor:
            start = time.perf_counter()
            times = [t for result in executor.map(call, jobs) for t in result]
            wall = time.perf_counter() - start
        print(json.dumps({"seconds": times, "wall": wall}), flush=True)


if __name__ == "__main__":
    main()
