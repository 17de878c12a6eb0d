"""Families of three modalities that are neither Qwen's nor Gemma's."""

import transformers as hf

from processors.demo.tokenizer import SpecialTokens, build_tokenizer
from tests.helpers.zoo import templates
from tests.helpers.zoo.configs import full_config
from tests.helpers.zoo.family import family
from tests.helpers.zoo.grids import METADATA
from tests.helpers.zoo.qwen import chatml_with

DOTS = {"image": "<|imgpad|>", "video": "<|video_pad|>", "audio": "<|audio_comp_pad|>"}


@family("Dots3NoteForConditionalGeneration", **DOTS)
def dots3_note():
    tokenizer = chatml_with({}, "<|imgpad|>", "<|audio_comp_pad|>")
    processor = hf.Dots3NoteProcessor(
        hf.Qwen2VLImageProcessor(),
        tokenizer,
        hf.Qwen3VLVideoProcessor(),
        hf.Dots3NoteFeatureExtractor(),
        chat_template=templates.turns(**DOTS),
    )
    ids = {f"{kind}_token_id": token for kind, token in DOTS.items()}
    return processor, full_config("dots3_note", tokenizer, **ids)


MUSE = {"image": "<|patch|>", "video": "<|video|>", "audio": "<|audio|>"}


@family("MuseSparkForConditionalGeneration", **MUSE, **METADATA)
def muse_spark():
    tokenizer = chatml_with(
        {}, "<|patch|>", "<|image_start|>", "<|image_end|>", "<|video|>",
        "<|vid_frame_separator|>", "<|vid_start|>", "<|vid_end|>", "<|audio|>",
        "<|soft_audio_start|>", "<|soft_audio_end|>",
    )  # fmt: skip
    processor = hf.MuseSparkProcessor(
        hf.MuseGlimmerImageProcessor(),
        hf.MuseGlimmerVideoProcessor(),
        tokenizer,
        hf.MuseSparkFeatureExtractor(),
        chat_template=templates.turns(**MUSE),
    )
    ids = {f"{kind}_token_id": token for kind, token in MUSE.items()}
    return processor, full_config("muse_spark", tokenizer, **ids)


INKLING_IMAGE = "<|content_image|><|unused_200054|>"
INKLING_AUDIO = "<|content_audio_input|><|unused_200053|>"


@family("InklingForConditionalGeneration", image=INKLING_IMAGE, audio=INKLING_AUDIO)
def inkling():
    tokenizer = chatml_with(
        {}, "<|unused_200053|>", "<|unused_200054|>", "<|content_image|>",
        "<|content_audio_input|>",
    )  # fmt: skip
    processor = hf.InklingProcessor(
        hf.InklingFeatureExtractor(),
        hf.InklingImageProcessor(),
        tokenizer,
        chat_template=templates.turns(image=INKLING_IMAGE, audio=INKLING_AUDIO),
    )
    ids = {"image_token_id": "<|unused_200054|>", "audio_token_id": "<|unused_200053|>"}
    return processor, full_config("inkling_mm_model", tokenizer, **ids)


@family("Inkling2ForConditionalGeneration", image="<|unused_200054|>")
def inkling2():
    tokenizer = chatml_with({}, "<|unused_200054|>")
    processor = hf.Inkling2Processor(
        hf.Inkling2ImageProcessor(),
        tokenizer,
        chat_template=templates.turns(image="<|unused_200054|>"),
    )
    return processor, full_config("inkling2", tokenizer, image_token_id="<|unused_200054|>")


@family("GraniteDoclingForConditionalGeneration", image="<image>", nested_images=True)
def granite_docling():
    cells = [f"<row_{r}_col_{c}>" for r in range(1, 7) for c in range(1, 7)]
    specials = SpecialTokens(
        last=("<fake_token_around_image>", "<global-img>", "<image>", *cells),
        bos="<|start_of_role|>",
        eos="<|end_of_text|>",
        pad="<|pad|>",
    )
    tokenizer = build_tokenizer(specials)
    processor = hf.GraniteDoclingProcessor(
        hf.GraniteDoclingImageProcessor(),
        tokenizer,
        chat_template=templates.plain(image="<image>"),
    )
    return processor, full_config("granite_docling", tokenizer, image_token_id="<image>")


NEMOTRON = {"image": "<image>", "video": "<video>", "audio": "<so_embedding>"}


@family("NemotronH_Omni_Reasoning_V3", **NEMOTRON)
def nemotron_h_omni():
    tokenizer = chatml_with(
        {}, "<image>", "<img>", "</img>", "<video>", "<so_embedding>", "<so_start>", "<so_end>"
    )
    processor = hf.NemotronH_Omni_Reasoning_V3Processor(
        hf.NemotronH_Omni_Reasoning_V3ImageProcessor(),
        hf.NemotronH_Omni_Reasoning_V3VideoProcessor(
            norm_mean=[0.48145466, 0.4578275, 0.40821073],
            norm_std=[0.26862954, 0.26130258, 0.27577711],
        ),
        tokenizer,
        hf.ParakeetFeatureExtractor(),
        chat_template=templates.turns(**NEMOTRON),
    )
    return processor, full_config("nemotron_h_omni", tokenizer)
