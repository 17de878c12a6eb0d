"""Request bodies, made before the clock runs; the service and the baselines get the same ones.

A recipe is `{"fields": {...}, "media": {"images": [SOURCE, ...]}}`. A source is one of
    {"file": path, "distinct": bool, "options"?: {..}}
                                        base64 of a file; distinct: another file at each use
    {"url": "http://.../x.jpg?{n}"}     `{n}` becomes another number at each use
    {"value": ...}                      what goes into the request as it is
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pybase64

from bench.media import distinct


class Kitchen:
    """Makes bodies; remembers what it has used, so that nothing comes twice in a run."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._distinct: dict[str, Iterator[bytes]] = {}
        self._numbers = itertools.count()

    def make(self, recipe: dict[str, Any], count: int) -> list[bytes]:
        """Return bodies of POST /preprocess."""
        return [self._make(recipe) for _ in range(count)]

    def _make(self, recipe: dict[str, Any]) -> bytes:
        media = {
            kind: [self._source(source) for source in sources]
            for kind, sources in recipe["media"].items()
        }
        return orjson.dumps({**recipe["fields"], **media})

    def _source(self, source: dict[str, Any]) -> Any:
        if "url" in source:
            return source["url"].replace("{n}", str(next(self._numbers)))
        if "value" in source:
            return source["value"]
        path = source["file"]
        data = self._files.setdefault(path, Path(path).read_bytes())
        if source["distinct"]:
            data = next(self._distinct.setdefault(path, distinct(data)))
        text = pybase64.b64encode(data).decode()
        return {"data": text, "options": source["options"]} if "options" in source else text
