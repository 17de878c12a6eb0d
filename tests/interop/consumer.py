"""A consumer with the base install only; run as a script, prints a digest of every tensor.

Arguments: URL of a service. Imports of everything the base install lacks are blocked first.
"""

import hashlib
import json
import sys

BLOCKED = {
    "torch", "torchvision", "transformers", "tokenizers", "fastapi", "starlette", "uvicorn",
    "pydantic", "pydantic_settings", "PIL", "av", "blake3", "orjson", "pybase64", "structlog",
    "prometheus_client", "app", "processors", "cuda",
}  # fmt: skip


class Blocker:
    """Refuses imports, as if the packages were not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(name)


def digest(array):
    """Return what identifies a tensor: dtype, shape and bytes."""
    return [array.dtype.name, list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]


def main(url):
    sys.meta_path.insert(0, Blocker())
    from transport.client import Client

    seen = []
    with Client(url) as client:
        for bfloat16 in ("ml_dtypes", "uint16"):
            answer = client.preprocess(prompt="p")
            for item in answer.items:
                tensors = client.open_item(item, bfloat16=bfloat16)
                seen.append({name: digest(array) for name, array in tensors.items()})
                with client.open_item(item, copy=False, bfloat16=bfloat16) as tensors:
                    seen.append({name: digest(array) for name, array in tensors.items()})
                    del tensors
    print(json.dumps({"seen": seen, "blocked": sorted(BLOCKED & set(sys.modules))}))


if __name__ == "__main__":
    main(sys.argv[1])
