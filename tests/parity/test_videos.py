"""Videos of every family: ids and features equal those of the joint Hugging Face call."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from processors.errors import FramesMissing
from processors.types import ItemInput, ItemPlan, Modality
from tests.helpers.model_zoo import FAMILIES, Family, available_families, make_sample
from tests.parity.served import (
    Outputs,
    Served,
    allocate,
    assert_joint,
    frames_item,
    image_item,
    serve,
)
from tests.parity.tolerances import OTHER_IDS

VIDEO_FAMILIES = [n for n in available_families() if Modality.VIDEO in FAMILIES[n].prompts]
FPS = 2.0

UNSERVED = {
    "minimax_m3_vl": "its processor fails on frames that its resize does not make divisible",
}
ONE_AT_A_TIME = "the joint call takes no videos of different length or size"


def _call(family: Family, text: str, clips: Sequence[np.ndarray]) -> dict[str, Any]:
    metadata = [
        {
            "total_num_frames": len(clip),
            "fps": FPS,
            "duration": len(clip) / FPS,
            "width": clip.shape[2],
            "height": clip.shape[1],
            "video_backend": "pyav",
            "frames_indices": list(range(len(clip))),
        }
        for clip in clips
    ]
    sample = make_sample(family, videos=[(1, 28, 28)], text=text)
    return family.call(sample) | {"videos": list(clips), "video_metadata": metadata}


def _run(served: Served, item: ItemInput) -> tuple[ItemPlan, Outputs]:
    """Plan and process, once more where the tokens follow from pixels."""
    try:
        return served.run(item)
    except FramesMissing as replanned:
        outputs = allocate(replanned.plan.tensors)
        served.engine.process(item, replanned.plan, outputs)
        return replanned.plan, outputs


@pytest.mark.parametrize("name", [n for n in VIDEO_FAMILIES if n not in UNSERVED])
def test_videos_equal_the_joint_call(name: str, model_dir: Callable[[str], Path]):
    """Two clips of different size and length, or one where the joint call takes no two."""
    family = FAMILIES[name]
    served = serve(name, model_dir(name))
    frame = family.prompts[Modality.VIDEO]
    clips = make_sample(family, videos=[(4, 168, 140), (6, 140, 196)]).videos
    results = [_run(served, frames_item(clip, i)) for i, clip in enumerate(clips)]
    text = f"First {frame} then {frame}."
    try:
        joint = served.processor(**_call(family, text, clips))
    except ValueError:
        # Each works alone; no joint call can be compared.
        clips, results, text = clips[:1], results[:1], f"First {frame} then."
        joint = served.processor(**_call(family, text, clips))

    assert_joint(name, results, dict(joint))
    if (name, "video") not in OTHER_IDS:
        ours = served.ids(text, [plan for plan, _ in results])
        assert ours == joint["input_ids"][0].tolist()


def test_smolvlm_tells_each_video_its_own_frames(model_dir: Callable[[str], Path]):
    """One video alone has the joint call's ids, which the joint call of two does not keep."""
    family = FAMILIES["smolvlm"]
    served = serve("smolvlm", model_dir("smolvlm"))
    clips = make_sample(family, videos=[(4, 168, 140)]).videos
    plan, _ = served.run(frames_item(clips[0]))
    joint = served.processor(**_call(family, "See <video> now", clips))
    assert served.ids("See <video> now", [plan]) == joint["input_ids"][0].tolist()


def test_images_and_videos_stand_in_one_prompt(model_dir: Callable[[str], Path]):
    """Modalities mix in any order."""
    family = FAMILIES["qwen2_5_vl"]
    served = serve("qwen2_5_vl", model_dir("qwen2_5_vl"))
    image, video = family.prompts[Modality.IMAGE], family.prompts[Modality.VIDEO]
    text = f"{video} and {image} and {video}{image}"
    sample = make_sample(
        family, images=[(90, 60), (60, 200)], videos=[(4, 56, 84), (2, 84, 84)], text=text
    )
    plans = [served.engine.plan(image_item(p, i)) for i, p in enumerate(sample.images)]
    plans += [served.engine.plan(frames_item(v, i)) for i, v in enumerate(sample.videos)]
    joint = served.processor(**family.call(sample))
    assert served.ids(text, plans) == joint["input_ids"][0].tolist()
