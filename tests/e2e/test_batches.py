"""Images that come together share a call, over HTTP: same answers, told in the metrics."""

from pathlib import Path

import torch

from tests.e2e.test_preprocess import IMAGE, png
from tests.helpers.service import b64, inline_tensors, running


def test_images_of_one_request_share_a_call(demo_dir: Path) -> None:
    """Four images of one size: as they would be one by one, and counted as a batch."""
    pictures = [b64(png(180, 120, seed=n)) for n in range(4)]
    body = {"prompt": IMAGE * 4, "images": pictures}
    batching = {
        "MMPREP_MODEL__MAX_BATCH": "4",
        "MMPREP_MODEL__BATCH_WAIT_MS": "1000",
        "MMPREP_MODEL__FAST_KERNELS": "false",
        "MMPREP_WORKERS__THREADS": "4",
    }
    with running([str(demo_dir)], batching) as service:
        batched = service.preprocess(body).json()
        assert service.metric("mmprep_batch_items_sum") == 16
        assert service.metric("mmprep_batch_items_count") == 4
    with running([str(demo_dir)]) as service:
        alone = service.preprocess(body).json()
        assert service.metric("mmprep_batch_items_sum") == 4
    for one, other in zip(batched["items"], alone["items"], strict=True):
        assert one["hash"] == other["hash"]
        for name, value in inline_tensors(other).items():
            assert torch.equal(inline_tensors(one)[name], value)
