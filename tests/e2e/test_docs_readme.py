"""The README's own commands, run as a newcomer would, against a real service."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.numpy

from processors.demo import demo_image_path
from tests.helpers.service import Service, running

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:8000"


def _block(start: str, kind: str) -> str:
    """The one code block of a kind that begins with `start`."""
    text = (ROOT / "README.md").read_text()
    found = re.findall(rf"^```{kind}\n({re.escape(start)}.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(found) == 1
    block: str = found[0]
    return block


@pytest.fixture(scope="module")
def service() -> Service:
    with running() as service:
        yield service


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(demo_image_path(), tmp_path / "photo.jpg")
    return tmp_path


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_answers_with_the_named_tensors(service: Service, folder: Path) -> None:
    """The curl command writes a document that holds exactly the tensors the README names."""
    command = _block("curl", "bash").replace(ADDRESS, service.base_url)
    subprocess.run(["bash", "-ec", command], cwd=folder, check=True, timeout=60)
    tensors = safetensors.numpy.load_file(folder / "answer.safetensors")
    assert set(tensors) == {"input_ids", "0.pixel_values", "0.image_grid_thw"}


def test_consumer_script_opens_the_features(service: Service, folder: Path) -> None:
    """The consumer script runs as printed and reads the features in place."""
    script = _block("from pathlib", "python").replace(ADDRESS, service.base_url)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "pixel_values" in done.stdout
