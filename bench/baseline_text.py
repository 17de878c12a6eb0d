"""The text path of the plain Hugging Face call: its image processor answers with grids at once.

`python -m bench.baseline_text MODEL_DIRECTORY`. An order is `{"prompt": text, "grid": [t, h, w],
"images": n, "requests": n}`, its answer `{"seconds": [..], "tokens": n}`: from the prompt to the
JSON of the ids.
"""

import sys
import time
from typing import Any

import numpy as np
import orjson
import torch
from transformers import BatchFeature

from bench.baseline import load_processor
from bench.orders import serve_orders


def use_grids(processor: Any, grids: torch.Tensor) -> None:
    """Let the image processor give these grids and no pixels."""
    plain = type(processor.image_processor)

    class Grids(plain):  # type: ignore[misc, valid-type]
        def __call__(self, *_: Any, **__: Any) -> BatchFeature:
            return BatchFeature({"pixel_values": torch.zeros(0), "image_grid_thw": grids})

        preprocess = __call__

    processor.image_processor.__class__ = Grids


def main() -> None:
    (directory,) = sys.argv[1:]
    processor = load_processor(directory)
    pixels = np.zeros((56, 56, 3), np.uint8)

    def handle(order: dict[str, Any]) -> dict[str, Any]:
        use_grids(processor, torch.tensor([order["grid"]] * order["images"]))
        images = [pixels] * order["images"]
        times, tokens = [], 0
        for _ in range(order["requests"]):
            start = time.perf_counter()
            result = processor(text=[order["prompt"]], images=images, return_tensors="pt")
            ids = result["input_ids"][0].numpy().astype(np.int32)
            orjson.dumps({"input_ids": ids}, option=orjson.OPT_SERIALIZE_NUMPY)
            times.append(time.perf_counter() - start)
            tokens = len(ids)
        return {"seconds": times, "tokens": tokens}

    serve_orders(handle)


if __name__ == "__main__":
    main()
