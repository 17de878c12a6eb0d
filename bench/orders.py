"""A child's side of `bench.sides.Side`."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def serve_orders(handle: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer orders, one JSON document a line, until the input ends.

    What libraries print goes to stderr, so that the answers stand alone.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(handle(json.loads(line))), file=answers, flush=True)
