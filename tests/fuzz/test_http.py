"""Mutated media and requests over HTTP, from several clients at once."""

import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from processors.types import Modality
from tests.helpers.model_zoo import FAMILIES
from tests.helpers.mutate import mutate
from tests.helpers.service import Service, b64, running

ROOT = Path(__file__).parents[2]
MEDIA = ROOT.parent / "shared" / "media"
SMALL = ROOT / "tests" / "resources" / "media"
CLIENTS = 4
CASES = 20_000
SECONDS = 900
MODEL = "gemma4"
FIELDS = {Modality.IMAGE: "images", Modality.VIDEO: "videos", Modality.AUDIO: "audios"}
MAX_FILE_BYTES = 200_000
"""Large files cost time and find no more than small ones."""


def corpus() -> list[tuple[Modality, bytes]]:
    files = sorted(MEDIA.glob("*/*")) or sorted(SMALL.iterdir())
    found = []
    for path in files:
        suffix = path.suffix.lstrip(".")
        kind = Modality.IMAGE
        if suffix in ("mp4", "mkv", "webm", "mov", "avi", "ts"):
            kind = Modality.VIDEO
        elif suffix in ("wav", "opus", "flac", "mp3", "ogg", "m4a"):
            kind = Modality.AUDIO
        if 0 < path.stat().st_size <= MAX_FILE_BYTES:
            found.append((kind, path.read_bytes()))
    return found


def resident(service: Service) -> int:
    return int(psutil.Process(service.pid).memory_info().rss)


@pytest.mark.fuzz
@pytest.mark.timeout(1500)
def test_mutated_media_over_http(model_dir: Callable[[str], Path]) -> None:
    """No 5xx but a retryable bystander's, no hang, no dead service, memory back where it was."""
    files = corpus()
    numbers = itertools.count()
    statuses: Counter[tuple[int, str]] = Counter()
    bad: list[tuple[int, str]] = []
    env = {
        "MMPREP_WORKERS__PROCESSES": "2", "MMPREP_STORE__GRACE_S": "0",
        "MMPREP_LIMITS__DECODE_S": "10", "MMPREP_TELEMETRY__LOG_LEVEL": "error",
        "MMPREP_LIMITS__DECODED_PIXELS": "20000000",
    }  # fmt: skip
    with running([f"{MODEL}={model_dir(MODEL)}"], env) as service:
        end = time.monotonic() + SECONDS

        def attack() -> None:
            with httpx2.Client(base_url=service.base_url, timeout=90) as client:
                while (number := next(numbers)) < CASES and time.monotonic() < end:
                    kind, data = files[number % len(files)]
                    body = {
                        "prompt": FAMILIES[MODEL].prompts[kind],
                        FIELDS[kind]: [b64(mutate(data, number))],
                        "transport": "ref",
                        "lease_ttl_s": 0.05,
                    }
                    answer = client.post("/preprocess", json=body)
                    code = "ok" if answer.status_code == 200 else answer.json()["code"]
                    statuses[answer.status_code, code] += 1
                    if answer.status_code >= 500:
                        bad.append((number, code))

        warm = [
            service.preprocess(
                {"prompt": FAMILIES[MODEL].prompts[k], FIELDS[k]: [b64(d)], "transport": "ref"}
            )
            for k, d in files[:20]
        ]
        assert {a.status_code for a in warm} - {500}
        before = resident(service)
        with ThreadPoolExecutor(CLIENTS) as crowd:
            for attacker in [crowd.submit(attack) for _ in range(CLIENTS)]:
                attacker.result()
        after = resident(service)
        restarts = service.metric("mmprep_worker_restarts_total")
        print(
            dict(statuses), f"{restarts:.0f} worker restarts, {before >> 20} -> {after >> 20} MiB"
        )
        assert service.get("/readyz").status_code == 200
        assert [b for b in bad if b[1] != "worker_crashed"] == []
        assert after < before * 1.1 + (64 << 20)
        assert service.stop() == 0


def random_json(chance: random.Random, depth: int = 0) -> Any:
    """A value that a careless or hostile client could send."""
    leaves = [None, True, -1, 0, 2**70, 1.5, "", "x", "\ud7ff", "a" * 300, "<|image_pad|>", [], {}]
    if depth > 3 or chance.random() < 0.5:
        return chance.choice(leaves)
    if chance.random() < 0.5:
        return [random_json(chance, depth + 1) for _ in range(chance.randrange(4))]
    names = ["prompt", "images", "url", "data", "upload", "hash", "options", "type", "content", "z"]
    return {
        chance.choice(names): random_json(chance, depth + 1) for _ in range(chance.randrange(4))
    }


@pytest.mark.fuzz
@pytest.mark.timeout(600)
def test_random_requests_are_answered_by_the_contract() -> None:
    """Any JSON in any field: a problem document of 4xx, or a plain answer."""
    fields = [
        "model", "prompt", "input_ids", "messages", "images", "videos", "audios", "expanded",
        "lenient", "tools", "chat_template_kwargs", "mm_processor_kwargs", "transport", "dtype",
        "encoding", "positions", "known", "plan_hash", "wait", "readers", "lease_ttl_s", "consumer",
        "cache_salt", "fingerprint", "priority", "deadline_ms", "max_prompt_tokens", "request_id",
    ]  # fmt: skip
    chance = random.Random(11)
    statuses: Counter[int] = Counter()
    with running() as service, service.client() as client:
        for _ in range(3000):
            chosen = chance.sample(fields, chance.randrange(1, 5))
            body = {name: random_json(chance) for name in chosen}
            answer = client.post("/preprocess", content=json.dumps(body), headers={
                "content-type": "application/json"})  # fmt: skip
            statuses[answer.status_code] += 1
            assert answer.status_code < 500, (body, answer.text)
            if answer.status_code != 200:
                assert answer.headers["content-type"] == "application/problem+json"
        print(dict(statuses))
        assert service.get("/readyz").status_code == 200
