"""One running service with the demo model, shared by the tests that leave it as they found it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from processors.demo import demo_image_path, demo_model_path
from tests.helpers.service import Service, running


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with the demo model under two names; files may come from one folder."""
    root = tmp_path_factory.mktemp("media")
    (root / "demo.jpg").write_bytes(demo_image_path().read_bytes())
    (root / "secret.txt").write_text("no image")
    (root / "link.jpg").symlink_to("/etc/passwd")
    model = str(demo_model_path())
    env = {"MMPREP_LOADING__ROOTS": str(root), "MMPREP_STORE__GRACE_S": "0"}
    with running([f"demo={model}", f"other={model}"], env) as running_service:
        running_service.media_root = root
        yield running_service
        assert running_service.stop() == 0, "".join(running_service.output)[-2000:]


@pytest.fixture(scope="session")
def demo_jpeg() -> bytes:
    """The demo JPEG, 640 x 480."""
    return demo_image_path().read_bytes()


@pytest.fixture(scope="session")
def demo_dir() -> Path:
    """The demo model's directory."""
    return demo_model_path()
