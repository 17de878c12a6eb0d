"""The plots of docs/benchmarks.md, from the results' series alone; small SVGs, dark on light."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

COLOURS = {
    "hf": "#b34700",
    "hf pool": "#b34700",
    "shm": "#0b4f8a",
    "mmprep": "#0b4f8a",
    "cold": "#0b4f8a",
    "binary": "#5a3d8a",
    "seen": "#1b6e3c",
    "floor": "#444444",
}
LABELS = {
    "hf": "plain Hugging Face call",
    "hf pool": "pool of Hugging Face processes",
    "shm": "mmprep, shared memory",
    "mmprep": "mmprep, shared memory",
    "cold": "mmprep, every picture new",
    "binary": "mmprep, binary body",
    "seen": "mmprep, picture seen before",
    "floor": "floor: decode, resize, one pass",
}
STAGES = ("load", "plan", "expand", "queue", "decode", "process")
Series = Mapping[str, Mapping[str, Any]]
"""Series by goal."""


def draw_all(series: Series, folder: Path) -> dict[str, str]:
    """Write the plots whose series are there; return their titles by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    titles = {}
    for name, (title, goal, key, draw) in PLOTS.items():
        data = {k: v for k, v in series.get(goal, {}).items() if k.startswith(key)}
        if data:
            write(folder / f"{name}.svg", lambda axes, d=data, f=draw: f(axes, d))
            titles[name] = title
    return titles


def write(path: Path, draw: Callable[[Axes], None]) -> None:
    """Draw one figure; the same data give the same bytes."""
    style = {
        "svg.hashsalt": path.stem,
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#dddddd",
        "legend.frameon": False,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(6.0, 3.2), layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        axes.set_axisbelow(True)
        draw(axes)
        figure.savefig(path, format="svg", metadata={"Date": None})


def line(axes: Axes, side: str, x: list[float], y: list[float]) -> None:
    axes.plot(x, y, marker="o", markersize=3.5, color=COLOURS[side], label=LABELS[side])


def scale(axis: Axis, at: list[float] | None = None) -> None:
    """Show a logarithmic axis in plain numbers: at these places, or at 1, 2, 5, 10, ..."""
    axis.set_major_locator(FixedLocator(at) if at else LogLocator(10, (1, 2, 5)))
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:.2g}" if value < 10 else f"{value:g}")
    )
    axis.set_minor_locator(NullLocator())


def draw_clients(axes: Axes, data: Mapping[str, Any]) -> None:
    points = data["growth.clients"]["points"]
    x = [point["clients"] for point in points]
    for side in points[0]["per_second"]:
        line(axes, side, x, [point["per_second"][side] for point in points])
    axes.set(xscale="log", yscale="log", xlabel="clients", ylabel="requests a second")
    scale(axes.xaxis, x)
    scale(axes.yaxis)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def draw_cdf(axes: Axes, data: Mapping[str, Any]) -> None:
    name, series = next(iter(data.items()))
    for side, values in series["ms"].items():
        ordered = sorted(values)
        shares = [100 * (n + 1) / len(ordered) for n in range(len(ordered))]
        axes.step(ordered, shares, where="post", color=COLOURS[side], label=LABELS[side])
    size = name.removeprefix("latency.")
    axes.set(xscale="log", xlabel=f"milliseconds a request, {size}, one client")
    axes.set(ylabel="requests answered (%)", ylim=(0, 101))
    scale(axes.xaxis)
    axes.legend(loc="lower right")


def draw_stages(axes: Axes, data: Mapping[str, Any]) -> None:
    names = [name.removeprefix("latency.") for name in data]
    left = [0.0] * len(names)
    shades = ("#0b4f8a", "#5a3d8a", "#1b6e3c", "#999999", "#b34700", "#d99a2b")
    for stage, shade in zip(STAGES, shades, strict=True):
        widths = [series["stages_ms"].get(stage, 0.0) for series in data.values()]
        axes.barh(names, widths, left=left, color=shade, label=stage, height=0.55)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set(xlabel="milliseconds, medians as the service tells them; stages may overlap")
    axes.invert_yaxis()
    axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def draw_size(axes: Axes, data: Mapping[str, Any]) -> None:
    points = data["growth.size"]
    x = [point["megapixels"] for point in points]
    for side in points[0]["ms"]:
        line(axes, side, x, [point["ms"][side] for point in points])
    axes.set(xscale="log", yscale="log", xlabel="megapixels of a JPEG")
    axes.set(ylabel="milliseconds a request")
    scale(axes.xaxis, x)
    scale(axes.yaxis)
    axes.legend()


def draw_images(axes: Axes, data: Mapping[str, Any]) -> None:
    points = data["growth.images"]
    x = [point["images"] for point in points]
    axes.plot(x, [p["wall_ms"] for p in points], "o-", color="#0b4f8a", label="time")
    axes.plot(x, [p["cpu_ms"] for p in points], "s--", color="#b34700", label="CPU time")
    axes.set(xscale="log", xlabel="images in a request", ylabel="milliseconds an image")
    scale(axes.xaxis, x)
    axes.set_ylim(bottom=0)
    axes.legend()


def draw_length(axes: Axes, data: Mapping[str, Any]) -> None:
    series = data["video.length"]
    x = [point["seconds"] for point in series["points"]]
    for side in series["points"][0]["ms"]:
        line(axes, side, x, [point["ms"][side] for point in series["points"]])
    axes.set(xscale="log", yscale="log", xlabel=f"seconds of video, {series['what']}")
    axes.set(ylabel="milliseconds a request")
    scale(axes.xaxis, x)
    scale(axes.yaxis)
    axes.legend()


PLOTS: dict[str, tuple[str, str, str, Callable[[Axes, Mapping[str, Any]], None]]] = {
    "throughput": ("Throughput and callers", "G12", "growth.clients", draw_clients),
    "latency": ("Latency, one client", "G1", "latency.", draw_cdf),
    "stages": ("Where a new picture's time goes", "G1", "latency.", draw_stages),
    "size": ("Cost and image size", "G12", "growth.size", draw_size),
    "images": ("Cost and images a request", "G12", "growth.images", draw_images),
    "length": ("Cost and length of a video", "G10", "video.length", draw_length),
}
"""File name: title, goal, beginning of the series' names, and what draws them."""
