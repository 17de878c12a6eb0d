"""The benchmark page is made of the results alone: rows, verdicts, plots."""

import json

import pytest

from bench.plots import PLOTS, draw_all
from bench.report import load, render
from bench.results import Found, Row, at_least, at_most
from bench.stats import Spread

FACTS = {
    "started": "2026-01-01T00:00:00Z",
    "commit": "0123456789abcdef",
    "is_dirty": False,
    "is_quick": False,
    "cpu": "a processor",
    "cores": 2,
    "memory_bytes": 8 << 30,
    "python": "3.11",
    "versions": {"torch": "2.14"},
}


def document(goal: str, found: Found) -> dict:
    """A goal's results as they are written."""
    return {"goal": goal, "title": "A goal", "facts": FACTS, **found.to_json()}


def test_rows_show_value_goal_and_verdict() -> None:
    """A value with its quartiles, its bound, the verdict that follows, and the sides."""
    found = Found(
        rows=[
            Row("one", Spread(2.5, 2.4, 2.625, 5), "x", at_least(2), {"hf": "9 ms"}, "a | b"),
            Row("two", Spread(150, 150, 150, 1), "ms", at_most(50)),
            Row("three", Spread(1, 1, 1, 1), "ms"),
        ],
        missing=[("four", "not offered")],
    )
    page = render({"G1": document("G1", found)}, {})
    assert "| one | 2.5 (2.4 to 2.62) x | ≥ 2 | met | hf 9 ms; a \\| b |" in page
    assert "| two | 150 ms | ≤ 50 | **not met** |  |" in page
    assert "| three | 1 ms |  |  |  |" in page
    assert "| four | not measured |  |  | not offered |" in page
    assert "Of the rows with a goal: 1 met, 1 not met." in page
    assert "commit `0123456789ab`, a processor, 2 cores, 8 GiB" in page


def test_results_of_several_runs_are_told_apart() -> None:
    """Goals that were not measured together are not shown as one run."""
    found = Found(rows=[Row("one", Spread(1, 1, 1, 1), "x")])
    first, second = document("G1", found), document("G2", found)
    assert "several runs" not in render({"G1": first, "G2": second}, {})
    second["facts"] = {**FACTS, "started": "2026-01-02T00:00:00Z", "is_quick": True}
    page = render({"G1": first, "G2": second}, {})
    assert "several runs" in page
    assert "A quick run" in page


@pytest.fixture
def series() -> dict:
    """Every series that a plot is drawn from."""
    times = {"hf": [3.0, 2.0], "shm": [1.0, 1.5], "binary": [2.0, 2.0], "floor": [1.0, 1.0]}
    sides = {"hf": 4.0, "mmprep": 2.0, "floor": 1.0}
    rates = {"hf pool": 4.0, "cold": 9.0, "seen": 99.0}
    points = [{"clients": n, "per_second": rates} for n in (1, 8)]
    return {
        "G1": {"latency.64x64": {"ms": times, "stages_ms": {"decode": 1.0, "process": 2.0}}},
        "G10": {
            "video.length": {
                "what": "64x64",
                "points": [{"seconds": n, "ms": {"hf": 2.0, "shm": 1.0}} for n in (10, 60)],
            }
        },
        "G12": {
            "growth.clients": {"size": "64x64", "points": points},
            "growth.size": [{"megapixels": n, "ms": sides} for n in (1.0, 12.0)],
            "growth.images": [{"images": n, "wall_ms": 2.0, "cpu_ms": 1.0} for n in (1, 64)],
        },
    }


def test_plots_are_drawn_from_the_series(series, tmp_path) -> None:
    """Every plot is a small SVG with its units, the same for the same series."""
    titles = draw_all(series, tmp_path / "once")
    draw_all(series, tmp_path / "again")
    assert titles.keys() == PLOTS.keys()
    for name in PLOTS:
        drawn = (tmp_path / "once" / f"{name}.svg").read_bytes()
        assert b"<svg" in drawn
        assert len(drawn) < 100_000
        assert drawn == (tmp_path / "again" / f"{name}.svg").read_bytes()
    assert b"milliseconds" in (tmp_path / "once" / "latency.svg").read_bytes()


def test_a_plot_without_its_series_is_left_out(series, tmp_path) -> None:
    """Goals that were not measured leave no empty plots."""
    del series["G12"], series["G10"]
    assert draw_all(series, tmp_path).keys() == {"latency", "stages"}


def test_results_are_read_in_the_goals_order(tmp_path) -> None:
    """G2 comes before G12, and other files of the folder are no goals."""
    for name in ("G12", "G2", "kernels"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"goal": name}))
    assert list(load(tmp_path)) == ["G2", "G12"]
