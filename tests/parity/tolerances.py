"""Every way in which our answer may differ from a joint Hugging Face call, with its reason.

What is not named here is `torch.equal`. Padding needs no entry: a tensor whose plan says `pad` is
compared inside of what the joint call padded.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """Absolute difference that is taken, and why."""

    atol: float
    reason: str


TAIL = "the joint call pads before its STFT, whose last frames then see zeros, not reflections"
ROUNDING = "the joint call's padded spectrogram is summed in another order"
JOINT_INDICES = "the joint call counts on over its items; ours are those of the item alone"

FEATURES: dict[tuple[str, str], Tolerance] = {
    ("qwen3_omni_moe", "input_features"): Tolerance(1.5, TAIL),
    ("qwen3_asr", "input_features"): Tolerance(1.5, TAIL),
    ("parakeet_ctc", "input_features"): Tolerance(1e-5, ROUNDING),
    ("nemotron_h_omni", "input_features"): Tolerance(1e-5, ROUNDING),
    ("molmo2", "image_token_pooling"): Tolerance(float("inf"), JOINT_INDICES),
    ("molmo2", "video_token_pooling"): Tolerance(float("inf"), JOINT_INDICES),
}
"""By family and tensor."""

OTHER_IDS: dict[tuple[str, str], str] = {
    ("smolvlm", "video"): "the joint call tells every video the longest one's number of frames",
}
"""Families and modalities whose ids are not those of the joint call."""

OF_THE_PROMPT = frozenset({
    "input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "labels",
    "moe_mm_token_type_ids", "cross_attention_mask", "video_metadata",
})  # fmt: skip
"""Outputs of a joint call that describe the prompt, not an item."""

ONLY_JOINT: dict[tuple[str, str], str] = {
    ("phi4_multimodal", "audio_attention_mask"): "tells clips of different length apart",
}
"""Outputs that an item alone does not have."""
