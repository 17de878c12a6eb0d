"""The test stand: sides that most goals share, started when first used, closed together."""

from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.facts import SEED, num_cores
from bench.media import make_jpeg
from bench.sides import Side, service
from processors.demo import demo_model_path
from tests.helpers.service import Service
from transport.shm import consumer_proof

PROMPT = "<|vision_start|><|image_pad|><|vision_end|>"
QUESTION = "What is this?"


class Stand:
    """Everything that a goal needs; a context manager.

    Args:
        folder: Where media are written.
        quick: Whether this run only shows that the benchmark works.
    """

    def __init__(self, folder: Path, quick: bool) -> None:
        self.folder = folder
        self.quick = quick
        self.socket = folder / "service.sock"
        self.cores = num_cores()
        self.model = str(demo_model_path())
        self._stack = ExitStack()

    def __enter__(self) -> "Stand":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End all sides; the next one asked for starts anew."""
        self._stack.close()
        for name in ("service", "load", "hf", "pool", "floor"):
            self.__dict__.pop(name, None)

    @cached_property
    def service(self) -> Service:
        settings = {
            "MMPREP_LOADING__ALLOW_PRIVATE": "127.0.0.0/8",
            "MMPREP_SERVER__UDS": str(self.socket),
        }
        return self._stack.enter_context(service(settings=settings))

    @cached_property
    def load(self) -> Side:
        return self.side("bench.load", self.service.base_url)

    @cached_property
    def hf(self) -> Side:
        return self.side("bench.baseline", self.model)

    @cached_property
    def pool(self) -> Side:
        return self.side("bench.baseline_pool", self.model)

    @cached_property
    def floor(self) -> Side:
        return self.side("bench.floor", self.model)

    def side(self, module: str, *arguments: str) -> Side:
        """Start a child that ends with the others."""
        side = Side(module, *arguments)
        self._stack.callback(side.close)
        return side

    def rounds(self, full: int) -> int:
        return 2 if self.quick else full

    def count(self, full: int) -> int:
        """Return how many requests a round has."""
        return max(2, full // 8) if self.quick else full

    def jpeg(self, width: int, height: int) -> Path:
        """Return a photo-like file of this size."""
        path = self.folder / f"{width}x{height}.jpg"
        if not path.exists():
            path.write_bytes(make_jpeg(width, height, SEED))
        return path


def image_recipe(
    path: Path, transport: str, *, distinct: bool = True, images: int = 1, **fields: Any
) -> dict[str, Any]:
    """Return the recipe of a request with pictures; see `bench.bodies`."""
    source = {"file": str(path), "distinct": distinct}
    return recipe({"images": [source] * images}, transport, PROMPT * images + QUESTION, **fields)


def recipe(
    media: dict[str, list[Any]], transport: str, prompt: str, **fields: Any
) -> dict[str, Any]:
    """Return a recipe; with shared memory, the proof that this machine's is shared."""
    if transport == "shm":
        fields["consumer"] = consumer_proof()
    return {"fields": {"prompt": prompt, "transport": transport, **fields}, "media": media}


def post_order(
    recipe: dict[str, Any],
    requests: int,
    *,
    clients: int = 1,
    accept: str = "json",
    batch: int = 8,
    **extra: Any,
) -> dict[str, Any]:
    """Return an order for `bench.load`."""
    return {
        "recipe": recipe,
        "requests": requests,
        "clients": clients,
        "accept": accept,
        "batch": batch,
        **extra,
    }


def require_good(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result of `bench.load` all of whose requests were answered.

    Raises:
        RuntimeError: If some were not; they would make the service look fast.
    """
    if set(result["statuses"]) != {"200"}:
        raise RuntimeError(f"requests failed: {result['statuses']} {result['codes']}")
    return result
