"""A real service in a process of its own, on a free port, for tests over a socket."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

START_S = 120.0
RESOURCES = Path(__file__).parents[1] / "resources"


@dataclass
class Service:
    """A running service; `output` holds what it printed."""

    process: subprocess.Popen[str]
    base_url: str = ""
    output: list[str] = field(default_factory=list)
    media_root: Path = Path("/")

    @property
    def pid(self) -> int:
        return self.process.pid

    def client(self, **kwargs: Any) -> httpx2.Client:
        return httpx2.Client(base_url=self.base_url, timeout=60, **kwargs)

    def preprocess(self, body: Mapping[str, Any], **kwargs: Any) -> httpx2.Response:
        with self.client() as client:
            return client.post("/preprocess", json=body, **kwargs)

    def get(self, path: str) -> httpx2.Response:
        with self.client() as client:
            return client.get(path)

    def features(self, path: str, key: str | None = None) -> httpx2.Response:
        """Get features however long they are in the making: a busy machine takes its time."""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        address = httpx2.URL(path).copy_merge_params({"wait_ms": 20_000})
        with self.client(headers=headers) as client:
            while (response := client.get(address)).status_code == 202:
                pass
        return response

    def metric(self, name: str) -> float:
        """The sum of all samples of a metric."""
        lines = self.get("/metrics").text.splitlines()
        return sum(float(x.rsplit(" ", 1)[1]) for x in lines if re.match(rf"{name}[ {{]", x))

    def stop(self, sig: int = signal.SIGTERM, timeout: float = 60) -> int:
        self.process.send_signal(sig)
        return self.process.wait(timeout)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def resource(name: str) -> bytes:
    return (RESOURCES / name).read_bytes()


def shm_files() -> set[str]:
    """Files of any of our instances in shared memory."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("mmprep")}


@contextmanager
def running(
    models: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
    command: Sequence[str] = ("app", "serve"),
) -> Iterator[Service]:
    """Start a service and wait until it is ready; kill it at the end if it still runs."""
    settings = {
        "MMPREP_SERVER__PORT": "0",
        "MMPREP_STORE__NBYTES": str(512 << 20),
        "MMPREP_LIMITS__FEATURE_BYTES": str(512 << 20),
        "MMPREP_WORKERS__PROCESSES": "1",
        **(env or {}),
    }
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("MMPREP_")}
    process = subprocess.Popen(
        [sys.executable, "-m", *command, *models, *args],
        env={**inherited, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    service = Service(process)
    ready = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            service.output.append(line)
            if found := re.search(r"http://[\d.:\[\]a-f]+", line):
                service.base_url = service.base_url or found.group()
                ready.set()
        ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert ready.wait(START_S), f"not ready in {START_S} s:\n{''.join(service.output)}"
        assert service.base_url, f"did not start:\n{''.join(service.output)}"
        yield service
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        reader.join(10)
        assert process.stdout is not None
        process.stdout.close()


def inline_tensors(item: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors of an item's inline document, by the safetensors library itself."""
    import safetensors.torch

    return dict(safetensors.torch.load(base64.b64decode(item["location"]["data"])))


def problem_of(response: httpx2.Response) -> dict[str, Any]:
    """The problem document of an answer, its shape checked."""
    assert response.headers["content-type"] == "application/problem+json", response.text[:500]
    document: dict[str, Any] = json.loads(response.content)
    assert document["status"] == response.status_code
    assert {
        "type",
        "title",
        "detail",
        "code",
        "param",
        "retryable",
        "request_id",
        "errors",
        "error",
    } <= set(document)
    return document
