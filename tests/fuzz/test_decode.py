"""Mutated media decoded by the thousand, in a child that may die."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEDIA = ROOT.parent / "shared" / "media"
SMALL = ROOT / "tests" / "resources" / "media"
CASES = 20_000
SECONDS = 600


@pytest.mark.fuzz
@pytest.mark.timeout(1200)
def test_no_mutation_escapes_the_codes(tmp_path: Path) -> None:
    """Every mutation decodes or gets one of three codes; nothing crashes, hangs or grows."""
    files = sorted(MEDIA.glob("*/*")) or sorted(SMALL.iterdir())
    state = tmp_path / "state"
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.fuzz.decode_child",
            str(state), str(CASES), str(SECONDS), "1", *map(str, files),
        ],
        capture_output=True, text=True, timeout=SECONDS + 120, check=False,
    )  # fmt: skip
    last = state.read_text() if state.exists() else "nothing"
    assert done.returncode == 0, f"{last}: {done.stderr[-2000:]}"
    report = json.loads(done.stdout)
    print(report["cases"], "cases")
    assert report["findings"] == []
    assert report["cases"] > 100
