"""The least that an exact answer takes: turbo decode, uint8 resize, one pass into the output.

`python -m bench.floor MODEL_DIRECTORY`. An order is `{"file": path, "requests": n}`, its answer
`{"seconds": [..], "wall": s, "nbytes": n}`. Qwen2.5-VL's patches; no HTTP, no base64, no ids, no
checks, and memory that is used again.
"""

import sys
import time
from pathlib import Path
from typing import Any

import simplejpeg
import torch
from torchvision.transforms.v2 import functional

from bench.baseline import load_processor
from bench.orders import serve_orders
from processors.fast.lut import normalization_table
from processors.fast.passes import write_patches


class Floor:
    def __init__(self, directory: str) -> None:
        self._part = load_processor(directory).image_processor
        part = self._part
        self._table = normalization_table(
            part, True, part.rescale_factor, True, tuple(part.image_mean), tuple(part.image_std)
        )

    def target(self, jpeg: bytes) -> tuple[tuple[int, int], torch.Tensor]:
        """Return the size that the processor resizes to, and memory for the patches."""
        pixels = torch.from_numpy(simplejpeg.decode_jpeg(jpeg)).permute(2, 0, 1)
        plain = self._part(images=[pixels], return_tensors="pt")
        _, rows, columns = plain["image_grid_thw"][0].tolist()
        size = self._part.patch_size
        return (rows * size, columns * size), torch.empty_like(plain["pixel_values"])

    @torch.inference_mode()
    def run(self, jpeg: bytes, size: tuple[int, int], out: torch.Tensor) -> None:
        pixels = torch.from_numpy(simplejpeg.decode_jpeg(jpeg)).permute(2, 0, 1)
        bicubic = functional.InterpolationMode.BICUBIC
        resized = functional.resize(pixels[None], size, interpolation=bicubic, antialias=True)
        part = self._part
        write_patches(
            resized.permute(0, 2, 3, 1),
            out,
            self._table,
            patch_size=part.patch_size,
            merge_size=part.merge_size,
            times=part.temporal_patch_size,
            repeat=True,
        )


def main() -> None:
    (directory,) = sys.argv[1:]
    floor = Floor(directory)

    def handle(order: dict[str, Any]) -> dict[str, Any]:
        jpeg = Path(order["file"]).read_bytes()
        size, out = floor.target(jpeg)
        times, begin = [], time.perf_counter()
        for _ in range(order["requests"]):
            start = time.perf_counter()
            floor.run(jpeg, size, out)
            times.append(time.perf_counter() - start)
        nbytes = out.nbytes * order["requests"]
        return {"seconds": times, "wall": time.perf_counter() - begin, "nbytes": nbytes}

    serve_orders(handle)


if __name__ == "__main__":
    main()
