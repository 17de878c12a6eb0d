"""The abuse list names tests that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_line_names_a_test_that_exists() -> None:
    """A promise without its test is none."""
    lines = (ROOT / "docs" / "security.md").read_text().splitlines()
    attacks = [x for x in lines if x.startswith("|") and x.count("|") - x.count("\\|") == 4]
    rows = [x for x in attacks if not x.startswith(("| attack", "|---", "| party"))]
    assert len(rows) > 30
    for row in rows:
        if row.startswith(("| operator", "| caller", "| author", "| consumer")):
            continue
        paths = re.findall(r"`(tests/[\w/.]+)`", row)
        assert paths, row
        assert all((ROOT / path).exists() for path in paths), row
