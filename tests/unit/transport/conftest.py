"""Real HTTP servers whose answers a test writes."""

import pytest

from tests.helpers.scripted import scripted_service, scripted_unix_service


@pytest.fixture
def service():
    """A scripted service on a free port."""
    with scripted_service() as service:
        yield service


@pytest.fixture
def unix_service(tmp_path):
    """A scripted service on a unix socket."""
    with scripted_unix_service(str(tmp_path / "service.sock")) as service:
        yield service
