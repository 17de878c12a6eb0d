"""The names of our metrics as they are scraped, read from the code that defines them."""

import ast
import inspect

from app import metrics

_SUFFIXES = {
    "Counter": ("_total",),
    "_counter": ("_total",),
    "CounterMetricFamily": ("_total",),
    "Gauge": ("",),
    "_gauge": ("",),
    "GaugeMetricFamily": ("",),
    "Histogram": ("_bucket", "_sum", "_count"),
}


def defined_metrics() -> dict[str, tuple[str, ...]]:
    """Every metric's documented name, with the names of its samples."""
    found: dict[str, tuple[str, ...]] = {}
    for node in ast.walk(ast.parse(inspect.getsource(metrics))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
            continue
        suffixes, first = _SUFFIXES.get(node.func.id), node.args[0]
        if suffixes and isinstance(first, ast.Constant) and isinstance(first.value, str):
            name = first.value
            documented = name + suffixes[0] if suffixes == ("_total",) else name
            found[documented] = tuple(name + suffix for suffix in suffixes)
    return found
