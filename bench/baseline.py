"""The plain Hugging Face call, in a process of its own: what an engine does for each request.

`python -m bench.baseline MODEL_DIRECTORY`. An order is `{"recipe": .., "requests": n}`, see
`bench.bodies`; its answer `{"seconds": [..], "wall": s, "nbytes": n, "grown": n}`, the last by how
many bytes the process was larger than before the calls. From the request's base64 to the
safetensors document: base64, Pillow, processor, `safetensors.torch.save`.
"""

import base64
import io
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import safetensors.torch
import torch
from PIL import Image
from transformers import AutoProcessor
from transformers.video_utils import read_video_pyav

from bench.bodies import Kitchen
from bench.orders import serve_orders
from bench.process import forget_peak, memory


def load_processor(directory: str) -> Any:
    torch.set_num_threads(1)
    return AutoProcessor.from_pretrained(directory)


def open_image(text: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB")


def open_video(video: dict[str, Any]) -> tuple[np.ndarray, Any]:
    """Return evenly spread frames (T, H, W, 3) and what the processor wants to know of them."""
    count = video["options"]["num_frames"]

    def evenly(metadata: Any, **_: Any) -> np.ndarray:
        return np.linspace(0, metadata.total_num_frames - 1, count, dtype=int)

    return read_video_pyav(io.BytesIO(base64.b64decode(video["data"])), evenly)


def call(processor: Any, request: dict[str, Any]) -> bytes:
    """Answer one parsed request body as a safetensors document."""
    media: dict[str, Any] = {}
    if images := request.get("images"):
        media["images"] = [open_image(text) for text in images]
    if videos := request.get("videos"):
        clips = [open_video(video) for video in videos]
        media["videos"] = [frames for frames, _ in clips]
        media["video_metadata"] = [metadata for _, metadata in clips]
        media["do_sample_frames"] = False
    result = processor(text=[request["prompt"]], return_tensors="pt", **media)
    tensors = {name: value.contiguous() for name, value in result.items()}
    return safetensors.torch.save(tensors)


def timed(work: Callable[[dict[str, Any]], bytes], requests: list[dict[str, Any]]) -> dict:
    """Run requests one after the other."""
    times, nbytes, begin = [], 0, time.perf_counter()
    for request in requests:
        start = time.perf_counter()
        nbytes += len(work(request))
        times.append(time.perf_counter() - start)
    return {"seconds": times, "wall": time.perf_counter() - begin, "nbytes": nbytes}


def main() -> None:
    (directory,) = sys.argv[1:]
    processor = load_processor(directory)
    kitchen = Kitchen()

    def handle(order: dict[str, Any]) -> dict[str, Any]:
        bodies = kitchen.make(order["recipe"], order["requests"])
        # Parsing is the caller's business: an engine in-process has the parsed request.
        requests = [orjson.loads(body) for body in bodies]
        idle = memory(os.getpid(), "VmRSS")
        forget_peak(os.getpid())
        result = timed(lambda request: call(processor, request), requests)
        return {**result, "grown": memory(os.getpid(), "VmHWM") - idle}

    serve_orders(handle)


if __name__ == "__main__":
    main()
