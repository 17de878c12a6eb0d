"""Settings of the parity tests."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let pass what transformers itself does in ways that numpy wants changed."""
    ignore = pytest.mark.filterwarnings("ignore:__array.*:DeprecationWarning")
    for item in items:
        if "tests/parity" in item.path.as_posix():
            item.add_marker(ignore)
