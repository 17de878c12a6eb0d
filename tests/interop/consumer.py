"""A consumer with the base install only; run as a script, prints a digest of every tensor.

Arguments: URL of a service, and the fields of a request as JSON. Imports of everything that the
base install lacks are blocked first.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

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


def consume(url, **fields):
    """Run this script; return what it saw, with bfloat16 as ml_dtypes shows it and as bits."""
    done = subprocess.run(
        [sys.executable, __file__, url, json.dumps(fields)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["blocked"] == []
    half = len(result["seen"]) // 2
    return result["seen"][:half], result["seen"][half:]


def main(url, fields):
    sys.meta_path.insert(0, Blocker())
    from transport.client import Client

    seen = []
    with Client(url) as client:
        for bfloat16 in ("ml_dtypes", "uint16"):
            answer = client.preprocess(**fields)
            for item in answer.items:
                tensors = client.open_item(item, bfloat16=bfloat16)
                seen.append({name: digest(array) for name, array in tensors.items()})
                with client.open_item(item, copy=False, bfloat16=bfloat16) as tensors:
                    seen.append({name: digest(array) for name, array in tensors.items()})
                    del tensors
    print(json.dumps({"seen": seen, "blocked": sorted(BLOCKED & set(sys.modules))}))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
