"""Every file of the media set, posted over HTTP, gets the manifest's answer."""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from processors.types import Modality
from tests.helpers.model_zoo import FAMILIES
from tests.helpers.service import Service, b64, problem_of, running

ROOT = Path(__file__).parents[2]
MEDIA = ROOT.parent / "shared" / "media"
SMALL = ROOT / "tests" / "resources" / "media"
MODEL = "gemma4"
FIELDS = {Modality.IMAGE: "images", Modality.VIDEO: "videos", Modality.AUDIO: "audios"}


@pytest.fixture(scope="module")
def service(model_dir: Callable[[str], Path]) -> Iterator[Service]:
    """A model that takes images, videos and audio."""
    with running([f"{MODEL}={model_dir(MODEL)}"], {"MMPREP_STORE__GRACE_S": "0"}) as started:
        yield started
        assert started.get("/readyz").status_code == 200
        assert started.stop() == 0


def rows() -> list[dict[str, str]]:
    if (MEDIA / "manifest.csv").exists():
        with open(MEDIA / "manifest.csv", newline="") as table:
            return [{**row, "path": str(MEDIA / row["file"])} for row in csv.DictReader(table)]
    return [
        {"file": p.name, "path": str(p), "kind": "", "code": "", "expect": "", "width": ""}
        for p in sorted(SMALL.iterdir())
    ]


def sent_as(row: dict[str, str]) -> Modality:
    if row["kind"] in list(Modality):
        return Modality(row["kind"])
    suffix = row["file"].rsplit(".", 1)[-1]
    if suffix in ("mp4", "mkv", "webm", "mov", "avi"):
        return Modality.VIDEO
    return Modality.AUDIO if suffix in ("wav", "opus", "flac", "mp3") else Modality.IMAGE


def post(service: Service, path: str, modality: Modality, **fields: Any) -> Any:
    prompt = FAMILIES[MODEL].prompts[modality]
    data = b64(Path(path).read_bytes())
    return service.preprocess({"prompt": prompt, FIELDS[modality]: [data], **fields})


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["file"])
def test_the_answer_over_http(service: Service, row: dict[str, str]) -> None:
    """Size after orientation, counts and rates in `source`; the code and the item if broken."""
    modality = sent_as(row)
    answer = post(service, row["path"], modality, transport="ref", lease_ttl_s=0.1)
    assert answer.status_code < 500, answer.text[:300]
    if answer.status_code != 200:
        problem = problem_of(answer)
        assert problem["param"].startswith(f"{FIELDS[modality]}[0]")
        assert not row["code"] or problem["code"] in row["code"]
        assert row["code"] or "4xx" in row["expect"] or "413" in row["expect"] or not row["kind"]
        return
    source = answer.json()["items"][0]["source"]
    assert source["nbytes"] == Path(row["path"]).stat().st_size
    if row["width"] and modality is not Modality.AUDIO:
        assert (source["width"], source["height"]) == (int(row["width"]), int(row["height"]))
    if modality is Modality.AUDIO and row.get("sample_rate"):
        assert source["sample_rate"] == int(row["sample_rate"])
        assert source["channels"] == int(row["channels"])
    if modality is Modality.IMAGE and row.get("exif_orientation"):
        assert source["orientation"] == int(row["exif_orientation"])


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["file"])
def test_other_media_posted_as_images(service: Service, row: dict[str, str]) -> None:
    """Videos and clips in `images` are 415, whatever they are named."""
    if sent_as(row) is Modality.IMAGE or row["kind"] not in ("video", "audio"):
        return
    answer = post(service, row["path"], Modality.IMAGE)
    assert (answer.status_code, problem_of(answer)["code"]) == (415, "unsupported_media_type")
