"""Fast kernels beside the plain processors: `python bench/kernels.py [FAMILY ...]`.

Both sides start from the same decoded pixels and end in the same preallocated tensors; rounds are
interleaved in one process with one torch thread. Prints medians of CPU milliseconds and their
ratio, and writes them as JSON with the machine's facts.
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
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Large buffers come back from the heap instead of fresh pages; the same for both sides.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "2147483648",
    "MALLOC_TOP_PAD_": "67108864",
}
FAMILIES = (
    "qwen2_5_vl",
    "qwen3_vl",
    "glm4v",
    "gemma3",
    "llava",
    "llava_next",
    "internvl",
    "pixtral",
)
CLIP = (20, 1280, 720)
SIZES = ((64, 64), (512, 512), (1024, 768), (1920, 1080), (4000, 3000))


def measure(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median CPU milliseconds of each function, rounds interleaved."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(rounds + 1):
        for name, function in functions.items():
            start = time.process_time()
            function()
            if turn:  # the first round warms up
                times[name].append((time.process_time() - start) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def compare(family: str, directory: Path, rounds: int) -> list[dict]:
    """Measure one family's image processor at every size, and its video processor."""
    import numpy as np
    from transformers import AutoProcessor

    from tests.helpers.model_zoo import build_model
    from tests.helpers.zoo.media import noise_image, video_metadata

    processor = AutoProcessor.from_pretrained(build_model(family, directory / family))
    rows = []
    for width, height in SIZES:
        pixels = np.array(noise_image(width, height))
        plain_kwargs = {"images": [pixels], "input_data_format": "channels_last"}
        medians = run(processor.image_processor, pixels, {}, plain_kwargs, rounds)
        rows.append(report(family, f"{width}x{height}", medians))
    if getattr(processor, "video_processor", None) is not None:
        frames, width, height = CLIP
        picture = np.array(noise_image(width, height))
        clip = np.stack([np.roll(picture, 7 * t, axis=0) for t in range(frames)])
        kwargs = {
            "do_sample_frames": False,
            "video_metadata": [video_metadata(frames, width, height)],
        }
        plain_kwargs = {"videos": [clip], **kwargs}
        medians = run(processor.video_processor, clip, kwargs, plain_kwargs, rounds)
        rows.append(report(family, f"{frames} x {width}x{height}", medians))
    return rows


def run(processor, pixels, kwargs: dict, plain_kwargs: dict, rounds: int) -> dict[str, float]:
    """Measure one processor and its kernel on the same pixels."""
    import torch

    from processors.fast import find_kernel

    kernel = find_kernel(processor)
    result = processor(return_tensors="pt", **plain_kwargs)
    expected = {n: v for n, v in result.items() if isinstance(v, torch.Tensor)}
    outputs = {n: torch.zeros_like(v).contiguous() for n, v in expected.items()}
    halves = {n: v.to(torch.bfloat16) if v.is_floating_point() else v for n, v in outputs.items()}

    def plain() -> None:
        told = processor(return_tensors="pt", **plain_kwargs)
        for name, output in outputs.items():
            output.copy_(told[name])

    functions = {
        "plain": plain,
        "fast": lambda: kernel.run(pixels, kwargs, outputs),
        "fast_bf16": lambda: kernel.run(pixels, kwargs, halves),
    }
    if kernel.features:
        codes = {}
        for name in kernel.features:
            shape = kernel.describe(name, tuple(expected[name].shape)).code_shape
            codes[name] = torch.zeros(shape, dtype=torch.uint8)
            codes[f"{name}.lut"] = torch.zeros(3, 256)
        functions["compact"] = lambda: kernel.run(pixels, kwargs, codes, "compact")
    if kernel.argument == "images":
        functions["taped"] = play_of(kernel, pixels, outputs)
    return measure(functions, rounds)


def play_of(kernel, pixels, outputs: dict) -> Callable[[], object]:
    """Return what writes an item by the tape of the first of its size."""
    import torch

    from processors.fast import Recording, view_of

    call = kernel.start(outputs)
    view = view_of(pixels)
    with torch.inference_mode(), Recording(call, view) as recording:
        features = call.sub_processor(images=[view], return_tensors="pt")
    tape = recording.tape({n: v for n, v in features.items() if isinstance(v, torch.Tensor)})

    def play() -> None:
        call = kernel.start(outputs)
        with torch.inference_mode():
            call.write(tape.play(call, view_of(pixels)))

    return play


def report(family: str, media: str, medians: dict[str, float]) -> dict:
    """Print one row and return it."""
    ratio = medians["plain"] / medians["fast"]
    cells = "  ".join(f"{name} {value:8.2f}" for name, value in medians.items())
    print(f"{family:12s} {media:14s}  {cells}   {ratio:5.2f}x", flush=True)
    return {"family": family, "media": media, "cpu_ms": medians, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=FAMILIES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("bench/results/kernels.json"))
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in MALLOC.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **MALLOC})
    import torch
    import transformers

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        rows = [
            row
            for family in options.families
            for row in compare(family, Path(directory), options.rounds)
        ]
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    facts = {
        "commit": commit,
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "rounds": options.rounds,
        "seed": 0,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"facts": facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
