"""Nemotron-H Omni: its processor has a call and an audio step of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

from processors.family import FamilySpec
from processors.hf import Clip
from processors.types import Modality


def _run_images(
    processor: Any,  # noqa: ANN401 - a transformers processor
    media: Sequence[Any],
    merged: Mapping[str, Any],
) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Source: `NemotronH_Omni_Reasoning_V3Processor.__call__` (transformers 5.24)."""
    features = processor.image_processor(images=list(media), **merged["images_kwargs"])
    count = len(features["image_grid_hw"])
    return features, [processor.replace_image_token(features, index) for index in range(count)]


def _run_videos(
    processor: Any,  # noqa: ANN401 - a transformers processor
    media: Sequence[Clip],
    merged: Mapping[str, Any],
) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Source: `NemotronH_Omni_Reasoning_V3Processor.__call__` (transformers 5.24)."""
    group = {
        "temporal_patch_size": processor.video_temporal_patch_dim,
        **merged["videos_kwargs"],
        "do_sample_frames": False,
        "video_metadata": [clip.metadata() for clip in media],
        "return_metadata": True,
    }
    features = processor.video_processor(videos=[clip.frames for clip in media], **group)
    texts = [processor.replace_video_token(features, index) for index in range(len(media))]
    names = processor.video_processor.model_input_names
    return {name: value for name, value in features.items() if name in names}, texts


def _run_audio(
    processor: Any,  # noqa: ANN401 - a transformers processor
    media: Sequence[Any],
    merged: Mapping[str, Any],
) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Source: `NemotronH_Omni_Reasoning_V3Processor.__call__` (transformers 5.24)."""
    values, mask, counts = processor._process_audio(list(media), merged["audio_kwargs"])
    texts = [
        processor.replace_audio_token({"num_tokens": counts}, index) for index in range(len(media))
    ]
    features = {"input_features": values}
    return (features if mask is None else {**features, "input_features_mask": mask}), texts


SPEC = FamilySpec(
    model_types=("nemotron_h_omni", "NemotronH_Omni_Reasoning_V3"),
    runs={
        Modality.IMAGE: _run_images,
        Modality.VIDEO: _run_videos,
        Modality.AUDIO: _run_audio,
    },
)
