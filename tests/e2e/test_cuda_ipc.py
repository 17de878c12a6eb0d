"""`cuda_ipc` over a real socket, its device memory played by host memory."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.helpers.host_memory import UUID, HostMemory
from tests.helpers.service import Service, b64, problem_of, running
from transport.cuda_ipc import PoolReader
from transport.errors import FeatureLost
from transport.wire import CudaLocation, Pool, TensorInfo

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("device")
    env = {
        "MMPREP_TRANSPORT__CUDA_IPC": "true",
        "MMPREP_TRANSPORT__CUDA_POOL_BYTES": str(8 << 20),
        "MMPREP_SERVER__API_KEYS": '["secret"]',
        "MMPREP_STORE__GRACE_S": "0",
    }
    command = ["tests.helpers.serve_with_host_memory", str(folder / "memory")]
    with running(env=env, command=command) as started:
        yield started
        assert started.stop() == 0, "".join(started.output)[-2000:]


def call(service: Service, method: str, path: str, **kwargs: Any) -> Any:
    with service.client(headers={"authorization": "Bearer secret"}) as client:
        return client.request(method, path, **kwargs)


def picture(seed: int, side: int = 280) -> str:
    pixels = np.random.default_rng(seed).integers(0, 255, (side, side, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return b64(out.getvalue())


def post(service: Service, seed: int, **fields: Any) -> Any:
    body = {"prompt": IMAGE, "images": [picture(seed)], **fields}
    return call(service, "POST", "/preprocess", json=body)


def proof(service: Service) -> dict[str, Any]:
    return dict(call(service, "GET", "/models").json()["consumer"])


def read(service: Service, item: dict[str, Any]) -> dict[str, np.ndarray]:
    pools = call(service, "GET", "/models").json()["pools"]
    import msgspec

    reader = PoolReader(open_memory=HostMemory.open)
    reader.tell([msgspec.convert(p, Pool) for p in pools])
    infos = {n: msgspec.convert(t, TensorInfo) for n, t in item["tensors"].items()}
    place = msgspec.convert(
        {k: v for k, v in item["location"].items() if k != "kind"}, CudaLocation
    )
    views = reader.read(place, infos)
    return {n: np.frombuffer(v.view, v.dtype).reshape(v.shape) for n, v in views.items()}


def test_features_on_the_device_equal_the_inline_ones(service: Service) -> None:
    """Bit for bit, through the pool's handle, an offset and a generation."""
    consumer = proof(service)
    assert consumer["gpus"] == [UUID]
    answer = post(service, 1, transport="cuda_ipc", consumer=consumer).json()
    item = answer["items"][0]
    assert item["location"]["kind"] == "cuda_ipc"
    tensors = read(service, item)
    inline = post(service, 1).json()["items"][0]
    import base64

    import safetensors.numpy

    expected = safetensors.numpy.load(base64.b64decode(inline["location"]["data"]))
    assert set(tensors) == set(expected)
    for name, tensor in expected.items():
        assert np.array_equal(tensors[name], tensor)


@pytest.mark.parametrize("change", [{"gpus": []}, {"pidns": 1}, {"shm": "x"}])
def test_what_is_not_shared_cannot_be_had(service: Service, change: dict[str, Any]) -> None:
    """GPU, pid namespace and shared memory must all be proven; the next transport is used."""
    consumer = proof(service) | change
    response = post(service, 2, transport="cuda_ipc", consumer=consumer)
    assert problem_of(response)["code"] == "unsupported_option"
    answer = post(service, 2, transport=["cuda_ipc", "safetensors"], consumer=consumer).json()
    assert answer["items"][0]["location"]["kind"] == "safetensors"
    assert "transport_passed_over" in [w["code"] for w in answer["warnings"]]


def test_the_pool_is_a_store_of_its_own(service: Service) -> None:
    """Leased regions fill it up to 429; released ones are evicted, and readers are told."""
    consumer = proof(service)
    answers = []
    for seed in range(10, 40):
        response = post(service, seed, transport="cuda_ipc", consumer=consumer)
        if response.status_code != 200:
            break
        answers.append(response.json())
    assert problem_of(response)["code"] == "store_full"
    ids = [answer["lease"]["id"] for answer in answers]
    call(service, "POST", "/leases/release", json={"ids": ids})
    assert post(service, 50, transport="cuda_ipc", consumer=consumer).status_code == 200
    lost = 0
    for answer in answers:
        try:
            read(service, answer["items"][0])
        except FeatureLost:
            lost += 1
    assert lost >= 1


def test_it_is_off_by_default_and_needs_a_guard() -> None:
    """Neither a key nor a unix socket: the start is refused."""
    import os
    import subprocess
    import sys

    env = {k: v for k, v in os.environ.items() if not k.startswith("MMPREP_")}
    done = subprocess.run(
        [sys.executable, "-m", "app", "serve"],
        env={**env, "MMPREP_TRANSPORT__CUDA_IPC": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "MMPREP_TRANSPORT__CUDA_IPC" in done.stderr
