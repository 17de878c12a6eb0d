"""Speech families that are not part of another one."""

import transformers as hf
from transformers import AutoConfig

from processors.demo.tokenizer import SpecialTokens, build_tokenizer
from tests.helpers.zoo import templates
from tests.helpers.zoo.configs import full_config, small_config
from tests.helpers.zoo.family import family
from tests.helpers.zoo.qwen import chatml_with


@family("WhisperForConditionalGeneration", audio="", has_text=False)
def whisper():
    specials = SpecialTokens(
        last=(
            "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|zh|>", "<|de|>",
            "<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>",
            "<|nospeech|>", "<|notimestamps|>",
            *(f"<|{i * 0.02:.2f}|>" for i in range(1501)),
        ),
        bos="<|endoftext|>",
        eos="<|endoftext|>",
        pad="<|endoftext|>",
        unk="<|endoftext|>",
    )  # fmt: skip
    tokenizer = build_tokenizer(specials)
    processor = hf.WhisperProcessor(hf.WhisperFeatureExtractor(feature_size=80), tokenizer)
    config = AutoConfig.for_model("whisper")
    config.vocab_size = len(tokenizer)
    config.encoder_layers = config.decoder_layers = 2
    config.decoder_start_token_id = tokenizer.convert_tokens_to_ids("<|startoftranscript|>")
    for role in ("bos", "eos", "pad"):
        setattr(config, f"{role}_token_id", tokenizer.eos_token_id)
    return processor, config


@family(
    "GraniteSpeechForConditionalGeneration",
    audio="<|audio|>",
    listed_text=True,
    requires=("torchaudio",),
)
def granite_speech():
    specials = SpecialTokens(
        last=("<|audio|>", "<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>", "<|pad|>"),
        bos="<|end_of_text|>",
        eos="<|end_of_text|>",
        pad="<|pad|>",
    )
    tokenizer = build_tokenizer(specials)
    processor = hf.GraniteSpeechProcessor(
        hf.GraniteSpeechFeatureExtractor(),
        tokenizer,
        chat_template=templates.plain(audio="<|audio|>"),
    )
    ids = {"audio_token_id": "<|audio|>", "audio_token_index": "<|audio|>"}
    return processor, small_config("granite_speech", tokenizer, **ids)


def _flamingo_tokenizer(*more: str):
    return chatml_with({}, "<sound>", *more)


@family("AudioFlamingo3ForConditionalGeneration", audio="<sound>", listed_text=True)
def audioflamingo3():
    tokenizer = _flamingo_tokenizer()
    processor = hf.AudioFlamingo3Processor(
        hf.WhisperFeatureExtractor(feature_size=128),
        tokenizer,
        chat_template=templates.turns(audio="<sound>"),
    )
    return processor, small_config("audioflamingo3", tokenizer, audio_token_id="<sound>")


@family("MusicFlamingoForConditionalGeneration", audio="<sound>", listed_text=True)
def musicflamingo():
    tokenizer = _flamingo_tokenizer("<|sound_bos|>", "<|sound_eos|>")
    processor = hf.MusicFlamingoProcessor(
        hf.WhisperFeatureExtractor(feature_size=128),
        tokenizer,
        chat_template=templates.turns(audio="<sound>"),
    )
    return processor, small_config("musicflamingo", tokenizer, audio_token_id="<sound>")


VIBEVOICE = "<|object_ref_start|><|box_start|><|object_ref_end|>"


@family(
    "VibeVoiceAsrForConditionalGeneration",
    audio=VIBEVOICE,
    listed_text=True,
    sample_rate_hz=24000,
)
def vibevoice_asr():
    tokenizer = chatml_with({}, "<|AUDIO_DURATION|>")
    processor = hf.VibeVoiceAsrProcessor(
        hf.VibeVoiceAcousticTokenizerFeatureExtractor(),
        tokenizer,
        chat_template=templates.turns(audio=VIBEVOICE),
    )
    return processor, full_config("vibevoice_asr", tokenizer, audio_token_id="<|box_start|>")


@family(
    "MossTranscribeDiarizeForConditionalGeneration",
    audio="<|audio_start|><|audio_pad|><|audio_end|>",
    listed_text=True,
)
def moss_transcribe_diarize():
    tokenizer = chatml_with({}, "<|audio_start|>", "<|audio_pad|>", "<|audio_end|>")
    processor = hf.MossTranscribeDiarizeProcessor(
        hf.MossTranscribeDiarizeFeatureExtractor(),
        tokenizer,
        chat_template=templates.turns(audio="<|audio_start|><|audio_pad|><|audio_end|>"),
    )
    config = full_config("moss_transcribe_diarize", tokenizer, audio_token_id="<|audio_pad|>")
    return processor, config


@family("Wav2Vec2ForCTC", audio="", has_text=False, fixed_call={"sampling_rate": 16000})
def wav2vec2():
    specials = SpecialTokens(
        first=("<pad>", "<s>", "</s>", "<unk>"), bos="<s>", eos="</s>", pad="<pad>", unk="<unk>"
    )
    tokenizer = build_tokenizer(specials)
    processor = hf.Wav2Vec2Processor(hf.Wav2Vec2FeatureExtractor(), tokenizer)
    return processor, small_config("wav2vec2", tokenizer)


@family("ParakeetForCTC", audio="", has_text=False, fixed_call={"sampling_rate": 16000})
def parakeet_ctc():
    specials = SpecialTokens(first=("<unk>", "<pad>"), pad="<pad>", unk="<unk>")
    tokenizer = build_tokenizer(specials)
    processor = hf.ParakeetProcessor(hf.ParakeetFeatureExtractor(), tokenizer)
    return processor, small_config("parakeet_ctc", tokenizer)
