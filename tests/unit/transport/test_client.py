"""The client over real sockets and real shared memory, sync and async alike."""

import base64
import json
import os
import threading

import msgspec
import numpy as np
import pytest
import torch

from tests.helpers.documents import (
    answer_of,
    binary_answer,
    document_of,
    item_of,
    layout_of,
    qwen_like_lut,
)
from transport import shm
from transport.arena import Arena
from transport.client import AsyncClient, Client
from transport.errors import (
    ApiError,
    DocumentError,
    FeatureLost,
    SegmentError,
    ServiceUnreachableError,
)
from transport.protocol import BINARY_TYPE, RetryPolicy
from transport.session import ClientOptions

JSON = {"Content-Type": "application/json"}
BINARY = {"Content-Type": BINARY_TYPE}


class Waiting:
    """An `AsyncClient` called the way a `Client` is, so that every test runs over both."""

    def __init__(self, client, loop):
        self._client = client
        self._loop = loop

    def __getattr__(self, name):
        method = getattr(self._client, name)

        def call(*args, **kwargs):
            result = method(*args, **kwargs)
            if hasattr(result, "__aenter__"):
                return _Entered(result, self._loop)
            return self._loop.run_until_complete(result)

        return call


class _Entered:
    def __init__(self, manager, loop):
        self._manager = manager
        self._loop = loop

    def __enter__(self):
        return self._loop.run_until_complete(self._manager.__aenter__())

    def __exit__(self, *exc):
        return self._loop.run_until_complete(self._manager.__aexit__(*exc))


@pytest.fixture(params=["sync", "async"])
def make_client(request):
    """Make clients of either kind; they are closed at the end."""
    import asyncio

    made = []
    loop = asyncio.new_event_loop()

    def make(url, **fields):
        fields = {"retry": RetryPolicy(attempts=3, max_wait_s=1, first_wait_s=0.001), **fields}
        options = ClientOptions(**fields)
        if request.param == "sync":
            made.append(Client(url, options=options))
            return made[-1]
        made.append(AsyncClient(url, options=options))
        return Waiting(made[-1], loop)

    yield make
    for client in made:
        if isinstance(client, Client):
            client.close()
        else:
            loop.run_until_complete(client.aclose())
    loop.close()


@pytest.fixture
def arena():
    with Arena(f"t{os.urandom(6).hex()}", [1 << 20]) as arena:
        yield arena


def _arrays(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "pixel_values": rng.random((4, 6), dtype=np.float32),
        "image_grid_thw": np.array([[1, 2, 2]]),
    }


INLINE_ITEM = item_of(_arrays(), {"kind": "safetensors"})


def _store(arena, arrays, key="k"):
    """Put a document into the store as the service does; returns its region."""
    layout = layout_of(arrays)
    [region] = arena.reserve([(key, layout.nbytes)])
    arena.view(region)[:] = document_of(arrays)
    arena.commit(region)
    return region


def _assert_same(got, wanted):
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        assert np.asarray(got[name]).dtype == array.dtype
        assert np.asarray(got[name]).tobytes() == array.tobytes()
        assert tuple(got[name].shape) == array.shape


def test_a_json_answer_is_opened(service, make_client):
    """Ids as int32, inline features from base64, writable."""
    arrays = _arrays()
    data = base64.b64encode(document_of(arrays)).decode()
    answer = answer_of(item_of(arrays, {"kind": "safetensors", "data": data}), news="ignored")
    service.say((200, JSON, json.dumps(answer).encode()))
    client = make_client(service.url)
    got = client.preprocess(prompt="<image>", images=["https://example.org/x.png"])
    assert got.input_ids.dtype == np.int32
    assert got.input_ids.tolist() == [5, 7, 7]
    assert got.items[0].offsets == [(1, 2)]
    assert (got.lease, got.warnings, got.position_ids) == (None, [], None)
    for _ in range(2):
        tensors = client.open_item(got.items[0])
        _assert_same(tensors, arrays)
    tensors["pixel_values"][0, 0] = 1
    method, path, headers, body = service.requests[0]
    assert (method, path) == ("POST", "/preprocess")
    assert headers["accept"].startswith(BINARY_TYPE)
    assert json.loads(body) == {"prompt": "<image>", "images": ["https://example.org/x.png"]}


def test_a_binary_answer_is_opened_in_place(service, make_client):
    """One document of everything; tensors are views of the body that was read."""
    several = [_arrays(1), _arrays(2)]
    items = [item_of(arrays, {"kind": "safetensors"}, index=i) for i, arrays in enumerate(several)]
    service.say((200, BINARY, binary_answer(several, answer_of(*items))))
    client = make_client(service.url)
    answer = client.preprocess(prompt="p", images=[])
    assert answer.input_ids.tolist() == [5, 7, 7]
    for item, arrays in zip(answer.items, several, strict=True):
        _assert_same(client.open_item(item), arrays)
        with client.open_item(item, copy=False) as tensors:
            _assert_same(tensors, arrays)
        with client.open_item(item, copy=False, framework="torch") as tensors:
            _assert_same({n: t.numpy() for n, t in tensors.items()}, arrays)


def test_media_bytes_and_files_are_uploaded(service, make_client, tmp_path):
    """No base64: file parts beside the JSON, ids as int32, and the proof where it is needed."""
    service.say((200, JSON, json.dumps(answer_of()).encode()))
    (tmp_path / "a.wav").write_bytes(b"wave")
    make_client(service.url).preprocess(
        input_ids=np.array([1, 2], np.int64),
        images=[b"png", None, {"data": b"raw", "options": {"alpha": "drop"}}, {"hash": "h"}],
        audios=[tmp_path / "a.wav"],
        uploads={"mine": b"bytes"},
        transport=["shm", "safetensors"],
    )
    [(_, _, headers, body)] = service.requests
    assert headers["content-type"].startswith("multipart/form-data")
    boundary = headers["content-type"].partition("boundary=")[2].encode()
    parts = {}
    for part in body.split(b"--" + boundary)[1:-1]:
        head, _, content = part.strip(b"\r\n").partition(b"\r\n\r\n")
        parts[head.partition(b'name="')[2].partition(b'"')[0].decode()] = content
    request = json.loads(parts.pop("request"))
    assert parts == {
        "images0": b"png",
        "images2": b"raw",
        "audios0": b"wave",
        "mine": b"bytes",
        "input_ids": bytes([1, 0, 0, 0, 2, 0, 0, 0]),
    }
    assert request == {
        "input_ids": {"upload": "input_ids"},
        "images": [
            {"upload": "images0"},
            None,
            {"options": {"alpha": "drop"}, "upload": "images2"},
            {"hash": "h"},
        ],
        "audios": [{"upload": "audios0"}],
        "transport": ["shm", "safetensors"],
        "consumer": shm.consumer_proof(),
    }
    with pytest.raises(TypeError):
        make_client(service.url).preprocess(images=[3])


def test_shared_memory_is_opened_with_and_without_a_copy(service, make_client, arena):
    """The same bits either way, in numpy and in torch; in place they cannot be written."""
    arrays = _arrays()
    place = shm.location(_store(arena, arrays))
    lease = {"id": "1-x", "ttl_ms": 1000, "readers": 1}
    service.say((200, JSON, json.dumps(answer_of(item_of(arrays, place), lease=lease)).encode()))
    client = make_client(service.url)
    [item] = client.preprocess(prompt="p").items
    copied = client.open_item(item)
    _assert_same(copied, arrays)
    copied["pixel_values"][:] = 0
    as_torch = client.open_item(item, framework="torch")
    assert torch.equal(as_torch["pixel_values"], torch.from_numpy(arrays["pixel_values"]))
    with client.open_item(item, copy=False) as tensors:
        _assert_same(tensors, arrays)
        assert not tensors["pixel_values"].flags.writeable
    with client.open_item(item, copy=False, framework="torch") as tensors:
        total = tensors["pixel_values"].sum().item()
    assert total == torch.from_numpy(arrays["pixel_values"]).sum().item()


def test_features_that_went_are_lost(service, make_client, arena):
    """Another generation, odd or even, before or while it is read; a segment that is gone."""
    arrays = _arrays()
    region = _store(arena, arrays)
    service.say((200, JSON, json.dumps(answer_of(item_of(arrays, shm.location(region)))).encode()))
    client = make_client(service.url)
    [item] = client.preprocess(prompt="p").items
    opened = client.open_item(item, copy=False)
    _assert_same(opened.__enter__(), arrays)
    arena.unpin(region)
    arena.drop_idle()
    with pytest.raises(FeatureLost):
        opened.__exit__(None, None, None)
    with pytest.raises(FeatureLost):
        client.open_item(item)
    opened = client.open_item(item, copy=False)
    with pytest.raises(FeatureLost):
        opened.__enter__()
    again = _store(arena, arrays)
    item.location = msgspec.convert(shm.location(again), type(item.location))
    client.open_item(item)
    item.location = msgspec.structs.replace(item.location, segment="mmprep-gone-store-0")
    with pytest.raises(FeatureLost):
        client.open_item(item)


def test_an_error_in_a_with_over_lost_features_is_told_as_lost(service, make_client, arena):
    """What went wrong with bytes that were replaced is no fault of the consumer."""
    arrays = _arrays()
    region = _store(arena, arrays)
    service.say((200, JSON, json.dumps(answer_of(item_of(arrays, shm.location(region)))).encode()))
    client = make_client(service.url)
    [item] = client.preprocess(prompt="p").items
    opened = client.open_item(item, copy=False)
    opened.__enter__()
    arena.unpin(region)
    arena.drop_idle()
    with pytest.raises(FeatureLost):
        opened.__exit__(ValueError, ValueError(), None)


def test_a_location_is_checked_before_it_is_read(service, make_client, arena):
    """A lying answer opens nothing outside of the store's regions."""
    arrays = _arrays()
    region = _store(arena, arrays)
    service.say((200, JSON, json.dumps(answer_of(item_of(arrays, shm.location(region)))).encode()))
    client = make_client(service.url)
    [item] = client.preprocess(prompt="p").items
    good = item.location
    for change in ({"offset": 0}, {"offset": 4097}, {"offset": 1 << 30}, {"segment": "../x"}):
        item.location = msgspec.structs.replace(good, **change)
        with pytest.raises(SegmentError):
            client.open_item(item)
    item.location = good
    item.tensors["pixel_values"] = msgspec.structs.replace(
        item.tensors["pixel_values"], shape=(6, 4)
    )
    with pytest.raises(DocumentError):
        client.open_item(item)


def test_ref_is_pulled(service, make_client):
    """A URL instead of bytes; gone is lost, pending is lost, other problems stay what they are."""
    arrays = _arrays()
    item = item_of(arrays, {"kind": "ref", "url": f"{service.url}/features/x?dtype=f", "nbytes": 1})
    service.say(
        (200, JSON, json.dumps(answer_of(item)).encode()),
        (200, BINARY, document_of(arrays)),
    )
    client = make_client(service.url, api_key="k")
    [item] = client.preprocess(prompt="p").items
    _assert_same(client.open_item(item), arrays)
    with client.open_item(item, copy=False) as tensors:
        _assert_same(tensors, arrays)
    assert service.requests[1][:2] == ("GET", "/features/x?dtype=f")
    assert service.requests[1][2]["authorization"] == "Bearer k"
    service.say((200, BINARY, document_of({**arrays, "pixel_values": np.zeros((6, 4), "f4")})))
    with pytest.raises(DocumentError):
        client.open_item(item)
    service.say((404, {}, b'{"code": "feature_not_found", "detail": "gone"}'))
    with pytest.raises(FeatureLost, match="gone"):
        client.open_item(item)
    service.say((202, {}, b""))
    with pytest.raises(FeatureLost):
        client.open_item(item)
    service.say((422, {}, b'{"code": "media_decode_failed", "param": "images[0]"}'))
    with pytest.raises(ApiError) as caught:
        client.open_item(item)
    assert (caught.value.code, caught.value.param) == ("media_decode_failed", "images[0]")


def test_features_by_hash_and_pending_items(service, make_client):
    """Both ask the same resource; waiting reads next to nothing."""
    arrays = _arrays()
    client = make_client(service.url)
    service.say((200, BINARY, document_of(arrays)))
    views = client.features("abc", dtype="bfloat16", encoding="plain", wait_s=2, lease="1-x")
    assert views["pixel_values"].shape == (4, 6)
    _, path, _, _ = service.requests[-1]
    assert path == "/features/abc?dtype=bfloat16&encoding=plain&wait_ms=2000&lease=1-x"
    [item] = _items(service, client, item_of(arrays, None, status="pending"))
    service.say((206, BINARY, b"12345678"))
    assert client.wait(item) is True
    assert service.requests[-1][2]["range"] == "bytes=0-7"
    service.say((202, {}, b""))
    assert client.wait(item, wait_s=0.5) is False
    service.say((404, {}, b'{"code": "feature_not_found"}'))
    with pytest.raises(FeatureLost):
        client.wait(item)
    item.hash = None
    with pytest.raises(FeatureLost):
        client.wait(item)
    with pytest.raises(SegmentError, match="pending"):
        client.open_item(item)


def _items(service, client, *items):
    service.say((200, JSON, json.dumps(answer_of(*items)).encode()))
    return client.preprocess(prompt="p").items


def test_compact_items_are_expanded(service, make_client):
    """Plain tensors unless the codes are asked for."""
    codes, table, encoding, plain = qwen_like_lut(np.random.default_rng(1))
    arrays = {"pixel_values": codes, "pixel_values.lut": table}
    item = item_of(arrays, {"kind": "safetensors"})
    item["tensors"]["pixel_values"]["encoding"] = msgspec.to_builtins(encoding)
    service.say((200, BINARY, binary_answer([arrays], answer_of(item))))
    client = make_client(service.url)
    [item] = client.preprocess(prompt="p", encoding="compact").items
    _assert_same(client.open_item(item), {"pixel_values": plain})
    assert torch.equal(
        client.open_item(item, framework="torch")["pixel_values"], torch.from_numpy(plain)
    )
    _assert_same(client.open_item(item, expand=False), arrays)


def test_positions_arrive_as_arrays(service, make_client):
    """JSON and binary answers give the same."""
    positions = np.arange(9, dtype=np.int32).reshape(3, 3)
    wire = {"dtype": "int32", "shape": [3, 3], "data": base64.b64encode(positions).decode()}
    answer = answer_of(position_ids=wire, mm_token_type_ids=wire, position_delta=-2)
    service.say((200, JSON, json.dumps(answer).encode()))
    client = make_client(service.url)
    got = client.preprocess(prompt="p", positions=True)
    assert np.array_equal(got.position_ids, positions)
    assert got.position_delta == -2
    arrays = {
        "position_ids": positions,
        "mm_token_type_ids": positions,
        "input_ids": positions[0],
    }
    metadata = {"response": json.dumps({**answer_of(), "input_ids": None})}
    service.say((200, BINARY, document_of(arrays, metadata)))
    got = client.preprocess(prompt="p", positions=True)
    assert np.array_equal(got.mm_token_type_ids, positions)
    assert np.array_equal(got.input_ids, positions[0])


def test_leases_are_released_and_renewed_in_batches(service, make_client):
    """Answers without a lease are no trouble, thousands of ids take few calls."""
    client = make_client(service.url)
    service.say((200, JSON, b'{"leases": {"1-a": "released"}}'))
    lease = {"id": "1-a", "ttl_ms": 5, "readers": 1}
    service.say((200, JSON, json.dumps(answer_of(lease=lease)).encode()))
    answer = client.preprocess(prompt="p")
    service.requests.clear()
    service.say((200, JSON, b'{"leases": {"1-a": "released"}}'))
    assert client.release(answer, answer.lease, "x", None, reader="me") == {"1-a": "released"}
    assert json.loads(service.requests[0][3]) == {"ids": ["1-a", "1-a", "x"], "reader": "me"}
    service.say((200, JSON, b'{"leases": {"1-a": "renewed"}}'))
    assert client.renew("1-a", ttl_s=7) == {"1-a": "renewed"}
    assert json.loads(service.requests[1][3]) == {"ids": ["1-a"], "ttl_s": 7}
    service.requests.clear()
    client.release(*[f"{i}-x" for i in range(5000)])
    assert [len(json.loads(r[3])["ids"]) for r in service.requests] == [4096, 904]
    service.requests.clear()
    assert client.release(None) == {}
    assert service.requests == []


def test_a_busy_service_is_asked_again(service, make_client):
    """429 and 503 are waited for as long as the service says, other problems are not."""
    client = make_client(service.url)
    fine = (200, JSON, json.dumps(answer_of()).encode())
    service.say(
        (429, {"Retry-After": "0"}, b'{"code": "store_full"}'),
        (503, {}, b'{"code": "worker_crashed", "retry_after_ms": 1}'),
        fine,
    )
    client.preprocess(prompt="p")
    assert len(service.requests) == 3
    service.requests.clear()
    service.say((429, {}, b"no json"))
    with pytest.raises(ApiError) as caught:
        client.preprocess(prompt="p")
    assert (caught.value.status, caught.value.retryable, len(service.requests)) == (429, True, 3)
    for answer in (
        (429, {"Retry-After": "60"}, b"{}"),
        (400, {}, b'{"code": "placeholder_mismatch", "detail": "2 and 3", "param": "prompt"}'),
        (500, {}, b""),
    ):
        service.requests.clear()
        service.say(answer)
        with pytest.raises(ApiError):
            client.preprocess(prompt="p")
        assert len(service.requests) == 1


def test_broken_connections_are_tried_again_and_then_told(service, make_client):
    """A body cut short is a failed answer; nobody listening is unreachable."""
    client = make_client(service.url)
    fine = json.dumps(answer_of()).encode()
    service.say((200, {"Content-Length": "1000"}, fine), (200, JSON, fine))
    assert client.preprocess(prompt="p").input_ids.tolist() == [5, 7, 7]
    service.requests.clear()
    service.say((200, {"Content-Length": "1000"}, fine))
    with pytest.raises(ServiceUnreachableError, match="whole"):
        client.preprocess(prompt="p")
    assert len(service.requests) == 3
    with pytest.raises(ServiceUnreachableError, match="reached"):
        make_client("http://127.0.0.1:9").preprocess(prompt="p")


def test_a_slow_answer_is_not_asked_for_twice(service, make_client):
    """Work that takes too long is not started again."""
    hold = threading.Event()

    class Held(list):
        def __getitem__(self, index):
            hold.wait(10)
            return (200, JSON, b"{}")

    service.answers = Held([()])
    try:
        with pytest.raises(ServiceUnreachableError, match="too long"):
            make_client(service.url, timeout_s=0.05).preprocess(prompt="p")
    finally:
        hold.set()
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (JSON, b"{}"),
        (JSON, b"\xff"),
        (JSON, json.dumps(answer_of(position_ids={"dtype": "x"})).encode()),
        (BINARY, b"short"),
        (BINARY, document_of({})),
        (BINARY, document_of({}, {"response": "{}"})),
        (BINARY, document_of({}, {"response": json.dumps(answer_of(INLINE_ITEM))})),
        (BINARY, document_of({}, {"response": json.dumps(answer_of({"modality": "smell"}))})),
    ],
)
def test_answers_that_are_none_are_told_as_such(service, make_client, headers, body):
    """Whatever answers on this port, the error is ours."""
    service.say((200, headers, body))
    with pytest.raises(DocumentError):
        make_client(service.url).preprocess(prompt="p")


def test_answers_beyond_the_limit_are_not_read(service, make_client):
    """Neither announced nor endless ones."""
    client = make_client(service.url, max_answer_bytes=1000)
    service.say((200, JSON, b"x" * 1001))
    with pytest.raises(DocumentError, match="limit"):
        client.preprocess(prompt="p")


def test_an_answer_without_a_length_is_read(service, make_client):
    """A proxy may take the length away."""
    body = json.dumps(answer_of()).encode()
    chunks = b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (10, body[:10], len(body) - 10, body[10:])
    service.say((200, {**JSON, "Transfer-Encoding": "chunked", "Content-Length": None}, chunks))
    assert make_client(service.url).preprocess(prompt="p").input_ids.tolist() == [5, 7, 7]


def test_a_unix_socket_is_dialled_where_one_is_named(make_client, unix_service):
    """The URL's host and port do not matter then."""
    unix_service.say((200, JSON, b'{"models": []}'))
    assert make_client("http://service", uds=unix_service.url).models() == {"models": []}


def test_models_are_listed(service, make_client):
    """The document as it stands."""
    service.say((200, JSON, b'{"models": [], "instance": "i"}'))
    assert make_client(service.url).models() == {"models": [], "instance": "i"}


def test_the_environment_names_the_service(monkeypatch):
    """Two settings have a variable; what is given goes before it, and the key is not printed."""
    monkeypatch.setenv("MMPREP_CLIENT_BASE_URL", "http://10.0.0.1")
    monkeypatch.setenv("MMPREP_CLIENT_API_KEY", "secret")
    assert ClientOptions().base_url == "http://10.0.0.1"
    assert ClientOptions(base_url="http://x").base_url == "http://x"
    assert ClientOptions().api_key == "secret"
    assert "secret" not in repr(ClientOptions())


def test_the_proof_is_that_of_this_machine(tmp_path):
    """Equal for two processes that share memory, different for another file system."""
    here = shm.consumer_proof(["GPU-1"])
    assert here["gpus"] == ["GPU-1"]
    assert here["pidns"] == os.stat("/proc/self/ns/pid").st_ino
    assert here["shm"].endswith(f":{os.stat('/dev/shm').st_dev}")
    assert shm.consumer_proof(directory="/proc")["shm"] != here["shm"]
    with pytest.raises(SegmentError):
        shm.consumer_proof(directory=str(tmp_path / "none"))
