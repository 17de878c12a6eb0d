"""Fixtures that every kind of test may use."""

import os

# Before anything imports torch or transformers: no hub, no thread fights on small machines.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A machine may be busy: no example fails for the time it takes.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.fixture(scope="session")
def model_dir(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Return a function from a family's name to its model directory, built once and kept.

    The directories lie in pytest's cache under a key of transformers' version and the builders'
    text, so a repeated run finds them.
    """
    from tests.helpers.model_zoo import FAMILIES, build_model, zoo_key

    folder = request.config.cache.mkdir(f"zoo-{zoo_key()}")

    def directory(name: str) -> Path:
        if missing := FAMILIES[name].missing:
            pytest.skip(f"{name} needs {', '.join(missing)}")
        return build_model(name, folder / name)

    return directory
