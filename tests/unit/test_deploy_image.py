"""The image's own RUN, HEALTHCHECK and CMD lines, in a clean folder, as another user.

No container engine is needed: the folder stands for the image's file system. Only the lines that
change the system itself (packages, the user) are left out.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UID = 10001
SYSTEM = ("apt-get", "useradd")
INSTALL_S, START_S, STOP_S = 1500, 180, 60


def _instructions() -> Iterator[tuple[str, str]]:
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest


def _as_user(command: list[str]) -> list[str]:
    if os.getuid() != 0:
        return command
    return ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", *command]


class Image:
    """Builds in a folder what the Dockerfile builds in an image."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder, self.source, self.prefix = folder, folder / "src", folder / "opt"
        tools = folder / "tools"
        for path in (self.source, tools, folder / "home"):
            path.mkdir()
        (tools / "python").symlink_to(python)
        self.env = {
            "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(folder / "home"),
            "PREFIX": str(self.prefix),
            **self._arguments(),
        }
        self.own()

    def _arguments(self) -> dict[str, str]:
        """The build arguments' defaults, or what the environment says of an index."""
        found = dict(rest.split("=", 1) for word, rest in _instructions() if word == "ARG")
        del found["PREFIX"]
        return {**found, "TORCH_INDEX": os.environ.get("TORCH_INDEX", found["TORCH_INDEX"])}

    def own(self) -> None:
        """Give everything to the other user."""
        if os.getuid() == 0:
            for path in (self.folder, *self.folder.rglob("*")):
                os.chown(path, UID, UID, follow_symlinks=False)

    def build(self) -> None:
        """Carry out the first stage; later ENV lines are the service's."""
        for word, rest in _instructions():
            if word == "RUN" and not rest.startswith(SYSTEM):
                self.run(rest)
            elif word == "COPY" and "--from" not in rest:
                self.copy(rest)
            elif word == "ENV":
                self.set(rest)

    def set(self, rest: str) -> None:
        for part in shlex.split(rest):
            name, _, value = part.partition("=")
            replaced = re.sub(r"\$(\w+)", lambda found: self.env[found[1]], value)
            self.env[name] = replaced

    def copy(self, rest: str) -> None:
        *sources, target = rest.split()
        for name in sources:
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.so")
                shutil.copytree(source, self.source / target, ignore=ignored)
            else:
                shutil.copy(source, self.source / target)
        self.own()

    def run(self, line: str) -> None:
        done = subprocess.run(
            _as_user(["sh", "-c", line]),
            cwd=self.source,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_S,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-4000:]}"

    def words(self, word: str) -> list[str]:
        """The exec form of an instruction."""
        rest = next(rest for name, rest in _instructions() if name == word)
        words: list[str] = json.loads(rest[rest.index("[") :])
        return words


def _python() -> str:
    """An interpreter of the image's version that any user may start."""
    version = next(rest for word, rest in _instructions() if word == "FROM").split(":")[1][:4]
    found = shutil.which(f"python{version}", path="/usr/local/bin:/usr/bin")
    if found is None:
        pytest.skip(f"needs a system-wide python{version}")
    return found


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("needs setpriv to be another user")
    python = _python()
    # Not pytest's own folder: that one is closed to other users.
    with tempfile.TemporaryDirectory(prefix="mmprep-image-") as folder:
        image = Image(Path(folder), python)
        image.build()
        yield image


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_S + START_S + STOP_S)
def test_image_serves_is_healthy_and_stops(image: Image) -> None:
    """What was built starts as another user, passes its own health check, and drains with 0."""
    env = {
        **image.env,
        "MMPREP_SERVER__PORT": str(_free_port()),
        "MMPREP_WORKERS__PROCESSES": "1",
        "MMPREP_WORKERS__SPARES": "0",
        "MMPREP_STORE__NBYTES": str(256 << 20),
        "MMPREP_LIMITS__FEATURE_BYTES": str(256 << 20),
    }
    service = subprocess.Popen(
        _as_user([*image.words("ENTRYPOINT"), *image.words("CMD")]),
        cwd="/",
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output: list[str] = []
    ready = threading.Event()

    def read() -> None:
        assert service.stdout is not None
        for line in service.stdout:
            output.append(line)
            if "is ready at" in line:
                ready.set()
        ready.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert ready.wait(START_S), "".join(output)
        assert any("is ready at" in line for line in output), "".join(output)
        check = subprocess.run(
            _as_user(image.words("HEALTHCHECK")),
            env=env,
            capture_output=True,
            text=True,
            timeout=10,
        )
        assert check.returncode == 0, "".join(output) + check.stderr
        service.send_signal(signal.SIGTERM)
        assert service.wait(STOP_S) == 0, "".join(output)
    finally:
        if service.poll() is None:
            service.kill()
            service.wait()
        reader.join()
        assert service.stdout is not None
        service.stdout.close()


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_S)
def test_image_holds_no_tools(image: Image) -> None:
    """The image has the server's packages, compiled kernels included, and none of the tests'."""
    script = (
        "import importlib.util as u, sys\n"
        "found = [n for n in ('pytest', 'ruff', 'mypy', 'hypothesis') if u.find_spec(n)]\n"
        "import processors.fast._kernels\n"
        "import torch\n"
        "if torch.backends.cpu.get_cpu_capability() != 'DEFAULT':\n"
        "    import processors.fast._mel, processors.fast._resize\n"
        "sys.exit(str(found) if found else 0)\n"
    )
    python = str(image.prefix / "bin" / "python")
    done = subprocess.run(
        _as_user([python, "-c", script]), cwd="/", env=image.env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
