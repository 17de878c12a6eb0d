"""The whole service when things go wrong: kills, disconnects, deadlines, drains, slow readers."""

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil
import pytest
import safetensors.numpy
from PIL import Image

from tests.helpers.service import Service, b64, problem_of, running, shm_files

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
BINARY = "application/vnd.mmprep.safetensors"


def jpeg(seed: int, width: int = 1280, height: int = 960) -> bytes:
    """A smooth picture that no other seed gives."""
    small = np.random.default_rng(seed).integers(0, 255, (height // 32, width // 32, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(small).resize((width, height)).save(out, "JPEG", quality=85)
    return out.getvalue()


def body(*images: bytes, **fields: Any) -> dict[str, Any]:
    return {"prompt": IMAGE * len(images), "images": [b64(i) for i in images], **fields}


def until(holds: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for what another process brings about."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def workers_of(service: Service) -> list[int]:
    children = psutil.Process(service.pid).children(recursive=True)
    return [c.pid for c in children if "app.worker" in c.cmdline()]


def is_at_rest(service: Service) -> bool:
    names = ("mmprep_store_held_bytes", "mmprep_requests_admitted", "mmprep_running_jobs")
    return not any(service.metric(name) for name in names)


@pytest.fixture(scope="module")
def service() -> Any:
    with running(env={"MMPREP_STORE__GRACE_S": "0", "MMPREP_WORKERS__PROCESSES": "2"}) as started:
        yield started
        assert started.stop() == 0, "".join(started.output)[-3000:]


def test_a_killed_worker_costs_only_its_own_requests(service: Service) -> None:
    """kill -9 under load: 200 or a retryable 503, and full capacity afterwards."""
    many = [body(jpeg(n, 2560, 1920)) for n in range(40)]
    with ThreadPoolExecutor(8) as crowd:
        posts = [crowd.submit(service.preprocess, each) for each in many]
        until(lambda: service.metric("mmprep_requests_admitted") >= 6)
        os.kill(workers_of(service)[0], signal.SIGKILL)
        answers = [post.result() for post in posts]
    codes = Counter(a.status_code for a in answers)
    assert set(codes) <= {200, 503}
    assert codes[503] <= 4
    for answer in answers:
        if answer.status_code == 503:
            problem = problem_of(answer)
            assert (problem["code"], problem["retryable"]) == ("worker_crashed", True)
            assert "retry-after" in answer.headers
    until(lambda: len(workers_of(service)) >= 3)
    assert service.preprocess(body(jpeg(1000))).status_code == 200
    until(lambda: is_at_rest(service))


def test_a_client_that_leaves_leaves_nothing(service: Service) -> None:
    """Closed connections cancel what is queued for them; pins and permits come back."""
    payloads = [json.dumps(body(jpeg(n + 2000, 2560, 1920))).encode() for n in range(12)]
    sockets = []
    port = int(service.base_url.rsplit(":", 1)[1])
    for payload in payloads:
        connection = socket.create_connection(("127.0.0.1", port))
        head = (
            b"POST /preprocess HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(payload)
        )
        connection.sendall(head + payload)
        sockets.append(connection)
    until(lambda: service.metric("mmprep_requests_admitted") > 0)
    for connection in sockets:
        connection.close()
    until(lambda: is_at_rest(service))
    assert service.preprocess(body(jpeg(3000))).status_code == 200


def test_a_client_may_leave_in_the_middle_of_its_body(service: Service) -> None:
    """Half a body is nobody's fault: no problem is logged or counted, and nothing stays held."""
    port = int(service.base_url.rsplit(":", 1)[1])
    before = service.metric("mmprep_requests_total")
    for kind in (b"application/json", b"multipart/form-data; boundary=b"):
        with socket.create_connection(("127.0.0.1", port)) as leaving:
            leaving.sendall(
                b"POST /preprocess HTTP/1.1\r\nhost: x\r\ncontent-type: " + kind + b"\r\n"
                b"content-length: 1000\r\n\r\n--b\r\n"
            )
            until(lambda: service.metric("mmprep_requests_admitted") > 0)
        until(lambda: is_at_rest(service))
    codes = service.get("/metrics").text
    assert service.metric("mmprep_requests_total") > before
    assert 'code="gone",route="/preprocess"' in codes
    assert 'code="internal"' not in codes


def test_a_deadline_is_kept(service: Service) -> None:
    """A request that cannot be done in time is 504, and its work is dropped."""
    answer = service.preprocess(body(*(jpeg(n + 4000) for n in range(8)), deadline_ms=5))
    assert (answer.status_code, problem_of(answer)["code"]) == (504, "deadline_exceeded")
    until(lambda: is_at_rest(service))


def test_a_slow_reader_gets_its_own_bytes() -> None:
    """A store that holds two regions is overwritten all the time; no foreign byte arrives."""
    colours = [(n * 40 % 256, n * 70 % 256, n * 110 % 256) for n in range(6)]
    pictures = []
    for colour in colours:
        out = io.BytesIO()
        Image.new("RGB", (1000, 1000), colour).save(out, "PNG")
        pictures.append(out.getvalue())
    env = {
        "MMPREP_STORE__NBYTES": str(56 << 20),
        "MMPREP_LIMITS__FEATURE_BYTES": str(48 << 20),
        "MMPREP_STORE__STAGING_BYTES": str(64 << 20),
    }
    with running(env=env) as service:
        port = int(service.base_url.rsplit(":", 1)[1])
        payload = json.dumps(body(pictures[0])).encode()
        slow = socket.create_connection(("127.0.0.1", port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        slow.sendall(
            b"POST /preprocess HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"content-type: application/json\r\naccept: %s\r\ncontent-length: %d\r\n\r\n"
            % (BINARY.encode(), len(payload))
            + payload
        )
        first = slow.recv(100)
        for picture in pictures[1:] * 2:
            answer = service.preprocess(body(picture))
            assert answer.status_code in (200, 429)
        received = bytearray(first)
        while chunk := slow.recv(1 << 16):
            received += chunk
            if len(received) % 97 == 0:
                service.preprocess(body(pictures[1 + len(received) % 5]))
        slow.close()
        document = bytes(received).split(b"\r\n\r\n", 1)[1]
        pixels = safetensors.numpy.load(document)["0.pixel_values"]
        for channel in pixels.reshape(len(pixels), 3, -1).transpose(1, 0, 2):
            assert len(np.unique(channel)) == 1
        assert service.stop() == 0


def test_a_stalled_reader_is_cut() -> None:
    """Who reads nothing for a while loses the connection, and the pins come back."""
    with running(env={"MMPREP_TRANSPORT__STALLED_READER_S": "0.5"}) as service:
        port = int(service.base_url.rsplit(":", 1)[1])
        payload = json.dumps(body(jpeg(1, 2000, 2000))).encode()
        stalled = socket.create_connection(("127.0.0.1", port))
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        stalled.sendall(
            b"POST /preprocess HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"accept: %s\r\ncontent-length: %d\r\n\r\n" % (BINARY.encode(), len(payload)) + payload
        )
        until(lambda: service.metric("mmprep_items_total") > 0)
        until(lambda: is_at_rest(service))
        stalled.close()


def test_a_drain_finishes_what_is_under_way() -> None:
    """SIGTERM: not ready, new work refused, work under way answered, exit 0, nothing left."""
    before = shm_files()
    with running() as service, ThreadPoolExecutor(4) as crowd:
        many = [body(*(jpeg(8 * n + m, 3000, 2000) for m in range(6))) for n in range(4)]
        accept = {"accept": BINARY}
        posts = [crowd.submit(service.preprocess, each, headers=accept) for each in many]
        until(lambda: service.metric("mmprep_requests_admitted") == 4)
        service.process.send_signal(signal.SIGTERM)
        until(lambda: service.get("/readyz").status_code == 503)
        refused = service.preprocess(body(jpeg(99)))
        assert (refused.status_code, problem_of(refused)["code"]) == (503, "draining")
        assert [post.result().status_code for post in posts] == [200] * 4
        assert service.process.wait(30) == 0
    assert shm_files() <= before


def test_keys_guard_everything_but_probes() -> None:
    """401 without a key, with the challenge; probes stay open."""
    with running(env={"MMPREP_SERVER__API_KEYS": '["k1", "k2"]'}) as service:
        for headers in ({}, {"authorization": "Bearer no"}, {"authorization": "Basic k1"}):
            answer = service.preprocess({"prompt": "x"}, headers=headers)
            assert (answer.status_code, problem_of(answer)["code"]) == (401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"
        good = {"authorization": "Bearer k2"}
        assert service.preprocess({"prompt": "x"}, headers=good).status_code == 200
        assert service.get("/models").status_code == 401
        assert service.get("/readyz").status_code == 200


def test_the_house_is_bounded() -> None:
    """One request too many is 429 with Retry-After; the store full of leases is 429 too."""
    env = {
        "MMPREP_ADMISSION__REQUESTS": "2",
        "MMPREP_STORE__NBYTES": str(64 << 20),
        "MMPREP_LIMITS__FEATURE_BYTES": str(48 << 20),
    }
    with running(env=env) as service:
        with ThreadPoolExecutor(12) as crowd:
            posts = [crowd.submit(service.preprocess, body(jpeg(n, 2000, 1500))) for n in range(12)]
            answers = [post.result() for post in posts]
        codes = {a.status_code for a in answers}
        assert codes == {200, 429}
        refused = next(a for a in answers if a.status_code == 429)
        assert problem_of(refused)["code"] == "overloaded"
        assert int(refused.headers["retry-after"]) >= 1
        consumer = service.get("/models").json()["consumer"]
        leased = [
            service.preprocess(body(jpeg(n + 50), transport="shm", consumer=consumer))
            for n in range(8)
        ]
        assert problem_of(leased[-1])["code"] == "store_full"
        assert leased[0].status_code == 200


@pytest.mark.parametrize("header", [True, False])
def test_a_body_beyond_its_limit_is_refused(header: bool) -> None:
    """By its Content-Length, and while it streams without one."""

    def chunks() -> Any:
        for _ in range(64):
            yield b"x" * 65536

    with running(env={"MMPREP_LIMITS__BODY_BYTES": str(1 << 20)}) as service:
        content = b"x" * (4 << 20) if header else chunks()
        with service.client() as client:
            answer = client.post(
                "/preprocess", content=content, headers={"content-type": "application/json"}
            )
        assert (answer.status_code, problem_of(answer)["code"]) == (413, "body_too_large")


def test_a_stalled_upload_is_given_up() -> None:
    """A body that stops coming is 408."""
    with running(env={"MMPREP_SERVER__BODY_TIMEOUT_S": "0.3"}) as service:
        port = int(service.base_url.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port)) as stalled:
            stalled.sendall(
                b"POST /preprocess HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"content-length: 100\r\n\r\n{"
            )
            answer = b""
            while b"request_timeout" not in answer and (chunk := stalled.recv(4096)):
                answer += chunk
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"request_timeout" in answer


def start(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("MMPREP_")}
    return subprocess.run(
        [sys.executable, "-m", "app", *args],
        env={**inherited, **env},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_bad_settings_stop_the_start_all_in_one_message() -> None:
    """Unknown names, wrong values and contradictions, with exit status 2."""
    done = start(
        "serve",
        MMPREP_STROE__NBYTES="1",
        MMPREP_LIMITS__ITEMS="none",
        MMPREP_SERVICE_HOST="10.0.0.1",
        MMPREP_PORT_8000_TCP="tcp://10.0.0.1:8000",
    )
    assert done.returncode == 2
    assert "MMPREP_STROE__NBYTES" in done.stderr
    assert "MMPREP_LIMITS__ITEMS" in done.stderr
    assert "MMPREP_SERVICE_HOST" not in done.stderr
    assert "Traceback" not in done.stderr
    huge = start("serve", MMPREP_STORE__NBYTES=str(1 << 50))
    assert huge.returncode == 2
    assert "exceed" in huge.stderr


def test_a_model_that_cannot_be_served_stops_the_start(tmp_path: Path) -> None:
    """Exit status 2 and one line with the reason; a taken port likewise."""
    done = start("serve", str(tmp_path), "--port", "0")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("mmprep: ")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = start("serve", "--port", port)
    assert (done.returncode, "cannot listen" in done.stderr) == (2, True)


def test_a_unix_socket_beside_tcp(tmp_path: Path) -> None:
    """`--uds` serves too, readable and writable by owner and group only."""
    path = tmp_path / "mmprep.sock"
    with running(args=["--uds", str(path)]) as service:
        assert path.stat().st_mode & 0o777 == 0o660
        transport = httpx2.HTTPTransport(uds=str(path))
        with httpx2.Client(transport=transport, base_url="http://mmprep") as client:
            assert client.get("/livez").json() == {"status": "live"}
            assert client.post("/preprocess", json={"prompt": "x"}).status_code == 200
        assert service.get("/livez").status_code == 200


def test_plan_and_run_work_without_a_server(tmp_path: Path) -> None:
    """The command line plans and preprocesses a file."""
    picture = tmp_path / "x.jpg"
    picture.write_bytes(jpeg(5))
    env = {"MMPREP_STORE__NBYTES": str(64 << 20), "MMPREP_LIMITS__FEATURE_BYTES": str(32 << 20)}
    request = ["--prompt", IMAGE, "--image", str(picture)]
    planned = start("plan", *request, **env)
    assert planned.returncode == 0, planned.stderr
    output = tmp_path / "out.safetensors"
    done = start("run", *request, "--output", str(output), **env)
    assert done.returncode == 0, done.stderr
    tensors = safetensors.numpy.load_file(output)
    assert tensors["input_ids"].tolist() == json.loads(planned.stdout)["input_ids"]
    doctor = start("doctor", **env)
    assert doctor.returncode == 0
    assert "shared memory" in doctor.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_load_of_two_hundred_large_pictures() -> None:
    """Every answer is 200 or 429, memory stays bounded, and the probe answers all the while."""
    pictures = [jpeg(n, 4000, 3000) for n in range(8)]
    late: list[float] = []
    with running(
        env={"MMPREP_WORKERS__PROCESSES": "2", "MMPREP_STORE__NBYTES": str(1 << 30)}
    ) as service:
        stop = threading.Event()

        def probe() -> None:
            with service.client() as client:
                while not stop.is_set():
                    start_s = time.perf_counter()
                    assert client.get("/livez").status_code == 200
                    late.append((time.perf_counter() - start_s) * 1e3)
                    stop.wait(0.02)

        prober = threading.Thread(target=probe)
        prober.start()
        answers = asyncio.run(post_all(service.base_url, pictures, 200))
        stop.set()
        prober.join()
        rss = psutil.Process(service.pid).memory_info().rss
    late.sort()
    p99 = late[int(len(late) * 0.99)]
    print(
        Counter(answers), f"/livez p50 {late[len(late) // 2]:.1f} p99 {p99:.1f} ms, {rss >> 20} MiB"
    )
    assert set(answers) <= {200, 429}
    assert answers.count(200) > 0


async def post_all(url: str, pictures: list[bytes], count: int) -> list[int]:
    """Post so many distinct requests at once; their statuses."""
    limits = httpx2.Limits(max_connections=count)
    async with httpx2.AsyncClient(base_url=url, limits=limits, timeout=600) as client:

        async def post(number: int) -> int:
            data = pictures[number % len(pictures)] + number.to_bytes(4, "little")
            request = json.dumps({"prompt": IMAGE, "images": [{"upload": "f"}]})
            async with client.stream(
                "POST", "/preprocess", data={"request": request}, files={"f": ("x", data)},
                headers={"accept": BINARY},
            ) as answer:  # fmt: skip
                async for _ in answer.aiter_bytes():
                    pass
                return answer.status_code

        return await asyncio.gather(*(post(n) for n in range(count)))
