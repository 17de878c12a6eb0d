"""The plain Hugging Face call of every family of the zoo, in one process.

`python -m bench.baseline_zoo DIRECTORY`, which holds a folder for each family. An order is
`{"family": name, "recipe": .., "requests": n}`, its answer that of `bench.baseline`.
"""

import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
import safetensors.torch
import torch

from bench.baseline import load_processor, open_image, timed
from bench.bodies import Kitchen
from bench.orders import serve_orders
from tests.helpers.model_zoo import FAMILIES, Sample


def call(family: str, processor: Any, request: dict[str, Any]) -> bytes:
    """Answer one parsed request body as a safetensors document."""
    images = [open_image(text) for text in request["images"]]
    prompt = request.get("prompt", "").removeprefix(FAMILIES[family].written)
    result = FAMILIES[family].run(processor, Sample(prompt, images))
    return safetensors.torch.save(dict(tensors_of(result)))


def tensors_of(result: Any) -> Any:
    """Yield the tensors of a processor's output, those in lists under names of their own."""
    for name, value in result.items():
        if isinstance(value, torch.Tensor):
            yield name, value.contiguous()
        elif isinstance(value, list | tuple):
            yield from tensors_of({f"{name}.{i}": each for i, each in enumerate(value)})


def main() -> None:
    root = Path(sys.argv[1])
    processor_of = lru_cache(maxsize=None)(lambda name: load_processor(str(root / name)))
    kitchen = Kitchen()

    def handle(order: dict[str, Any]) -> dict[str, Any]:
        family = order["family"]
        processor = processor_of(family)
        bodies = kitchen.make(order["recipe"], order["requests"])
        requests = [orjson.loads(body) for body in bodies]
        return timed(lambda request: call(family, processor, request), requests)

    serve_orders(handle)


if __name__ == "__main__":
    main()
