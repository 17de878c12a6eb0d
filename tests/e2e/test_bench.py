"""The benchmark runs: one goal end to end, with few requests. No time is asserted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_a_goal_is_measured(tmp_path) -> None:
    """A quick run of one goal writes rows with values, units and the machine's facts."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.run", "G3", "--quick", "--out", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "G3.json").read_text())
    assert document["facts"]["is_quick"] is True
    assert document["facts"]["cores"] == len(os.sched_getaffinity(0))
    measured = {(row["what"], row["unit"]): row["value"] for row in document["rows"]}
    cold = measured["1024x768, shared memory, one client", "x faster than cold"]
    assert cold["samples"] == 2
    assert cold["median"] > 0
    assert "1024x768, shared memory, one client" in done.stdout


def test_an_unknown_goal_is_refused() -> None:
    """A goal that does not exist is told before anything is started."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.run", "G99"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "no goal G99" in done.stderr
