"""VideoLLaMA 3: patches of a video that do not change are dropped; its tokens depend on pixels."""

from processors.family import FamilySpec
from processors.types import Modality

SPEC = FamilySpec(
    model_types=("video_llama_3",),
    data_dependent=frozenset({Modality.VIDEO}),
)
