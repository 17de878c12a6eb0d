"""Bytes that are written for each byte of a feature, counted in the process that makes it.

`python -m bench.copies MODEL_DIRECTORY`. An order is `{"file": path}`, its answer `{"nbytes": n,
"mmprep": n, "hf": n}`: the feature's bytes, and the bytes of floating tensors that are written on
the way from decoded pixels to where the consumer reads, by the engine and by the plain processor.
Counted are results of every torch operation that are not views, and our own passes.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.baseline import load_processor
from bench.orders import serve_orders
from processors.decode import decode_image
from processors.engine import Engine
from processors.fast import _kernels, passes
from processors.types import DecodeLimits, ItemInput, Modality, ModelSpec


class Written(TorchDispatchMode):
    """Adds up the bytes of floating tensors that operations write."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func not in UNWRITTEN:
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                    self.nbytes += leaf.nbytes * (leaf.device.type != "meta")
        return result


UNWRITTEN = {torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default}


class CountingKernels:
    """The compiled passes, with what they write added up."""

    def __init__(self, written: Written) -> None:
        self._written = written

    def __getattr__(self, name: str) -> Any:
        plain = getattr(_kernels, name)

        def counted(source: Any, target: np.ndarray, *arguments: Any) -> Any:
            self._written.nbytes += target.nbytes
            return plain(source, target, *arguments)

        return counted


@contextmanager
def counting() -> Iterator[Written]:
    written = Written()
    passes._kernels = CountingKernels(written)
    try:
        with written:
            yield written
    finally:
        passes._kernels = _kernels


def main() -> None:
    (directory,) = sys.argv[1:]
    limits = DecodeLimits()
    engine = Engine(ModelSpec("bench", directory), limits)
    plain = load_processor(directory).image_processor

    def handle(order: dict[str, Any]) -> dict[str, Any]:
        item = ItemInput(Modality.IMAGE, (Path(order["file"]).read_bytes(),))
        plan = engine.plan(item)
        outputs = {
            t.name: torch.empty(t.shape, dtype=getattr(torch, t.dtype)) for t in plan.tensors
        }
        with counting() as ours:
            engine.process(item, plan, outputs)
        pixels = decode_image(item.data[0], options=item.options, limits=limits)
        with counting() as theirs:
            result = plain(images=[pixels], return_tensors="pt")
        if not torch.equal(result["pixel_values"], outputs["pixel_values"]):
            raise RuntimeError("the two differ")
        nbytes = outputs["pixel_values"].nbytes
        return {"nbytes": nbytes, "mmprep": ours.nbytes, "hf": theirs.nbytes}

    serve_orders(handle)


if __name__ == "__main__":
    main()
