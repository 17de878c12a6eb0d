"""Voxtral: text and audio never meet in its processor's call; sound is cut into 30 s chunks."""

from collections.abc import Mapping, Sequence
from typing import Any

from processors.family import FamilySpec
from processors.types import Modality

_FRAMES_PER_TOKEN = 8
"""Mel frames behind one token: the encoder halves them, the projector joins four."""


def _run_audio(
    processor: Any,  # noqa: ANN401 - a transformers processor
    media: Sequence[Any],
    merged: Mapping[str, Any],
) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Source: `VoxtralProcessor.apply_chat_template` (transformers 5.24)."""
    group = dict(merged["audio_kwargs"])
    chunk_frames = group.pop("max_source_positions")
    texts = []
    for waveform in media:
        samples = group["pad_to_multiple_of"]
        chunks = -(-len(waveform) // samples)
        texts.append(processor.audio_token * (chunks * chunk_frames // _FRAMES_PER_TOKEN))
    features = processor._retrieve_input_features(list(media), chunk_frames, **group)
    return {"input_features": features}, texts


SPEC = FamilySpec(model_types=("voxtral",), runs={Modality.AUDIO: _run_audio})
