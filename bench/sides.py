"""The processes of a run: a service, and children that run one order at a time."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bench.facts import ENVIRONMENT, num_cores
from tests.helpers.service import Service, running


class Side:
    """A child that reads an order per line and answers with a line; see `serve_orders`."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._module = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ENVIRONMENT},
        )
        self._receive()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _receive(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise RuntimeError(f"{self._module} ended early with status {status}")
        return json.loads(line)

    def begin(self, **order: Any) -> None:
        """Send an order; `end` returns its result."""
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        return self._receive()

    def run(self, **order: Any) -> dict[str, Any]:
        self.begin(**order)
        return self.end()

    def close(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def service(
    models: Sequence[str] = (),
    *,
    processes: int | None = None,
    settings: Mapping[str, str] | None = None,
    command: Sequence[str] = ("app", "serve"),
) -> Iterator[Service]:
    """A service with a worker for each core, and no spare unless asked for."""
    env = {
        **ENVIRONMENT,
        "MMPREP_WORKERS__PROCESSES": str(processes or num_cores()),
        "MMPREP_WORKERS__SPARES": "0",
        "MMPREP_STORE__NBYTES": str(2 << 30),
        "MMPREP_LIMITS__FEATURE_BYTES": str(1 << 30),
        "MMPREP_TELEMETRY__LOG_LEVEL": "warning",
        **(settings or {}),
    }
    with running(models, env, command=command) as running_service:
        yield running_service
        running_service.stop()
