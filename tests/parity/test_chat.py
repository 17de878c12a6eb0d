"""Chat messages: ids equal Hugging Face's, and what a caller types is never a media token."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from processors.errors import InvalidRequestError
from processors.types import ChatInput
from tests.helpers.model_zoo import available_families, make_sample
from tests.helpers.zoo.media import noise_image
from tests.parity.served import Served, image_item, serve

ModelDir = Callable[[str], Path]


TEMPLATES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "llava", "llava_next", "internvl"]
TEMPLATES += ["llava_onevision", "idefics3", "glm4v", "smolvlm", "gemma4", "kimi_k25"]


@pytest.fixture(scope="module")
def qwen(model_dir: ModelDir) -> Served:
    """Qwen2.5-VL."""
    return serve("qwen2_5_vl", model_dir("qwen2_5_vl"))


@pytest.mark.parametrize("name", [n for n in TEMPLATES if n in available_families()])
def test_ids_equal_the_template_s(name: str, model_dir: ModelDir):
    """Rendering, tokenizing and expanding give what apply_chat_template gives."""
    served = serve(name, model_dir(name))
    picture = noise_image(120, 90)
    text = {"type": "text", "text": "What is <b>this</b>? a < b "}
    messages = [
        {"role": "user", "content": [{"type": "image"}, text]},
        {"role": "assistant", "content": [{"type": "text", "text": "A thing."}]},
        {"role": "user", "content": [{"type": "text", "text": "Why [x]?"}]},
    ]
    prompt = served.engine.render(ChatInput(tuple(messages)))
    plan = served.engine.plan(image_item(picture))
    ours = served.encoder.expand_text(prompt, [plan]).input_ids.tolist()

    rendered = served.processor.apply_chat_template(messages, add_generation_prompt=True)
    sample = make_sample(served.family, images=[(120, 90)], text=rendered)
    theirs = served.processor(**served.family.call(sample), add_special_tokens=False)

    assert prompt.text == rendered
    assert ours == theirs["input_ids"][0].tolist()


MEDIA = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>")
PIECES = st.sampled_from(
    [*MEDIA, "<", "<|", "<|image", "<|image_", "pad|>", "|>", ">", "_pad|>", " ", "\n", "é", "x"]
)


@given(contents=st.lists(st.lists(PIECES, max_size=5).map("".join), min_size=1, max_size=4))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_typed_media_tokens_stay_text(qwen: Served, contents: list[str]):
    """However strings are cut, ids hold the media tokens of real media parts only."""
    parts = [{"type": "text", "text": content} for content in contents]
    messages = ({"role": "user", "content": [{"type": "image"}, *parts]},)
    try:
        prompt = qwen.engine.render(ChatInput(messages))
    except InvalidRequestError:
        return  # refused is safe, too
    plan = qwen.engine.plan(image_item(noise_image(56, 56)))
    ids = qwen.encoder.expand_text(prompt, [plan]).input_ids.tolist()
    media = set(qwen.engine.info.special_tokens.values())
    assert sum(i in media for i in ids) == plan.num_tokens + 2
    assert "".join(contents) in qwen.processor.tokenizer.decode(ids)


def test_other_special_tokens_keep_their_meaning(qwen: Served):
    """An echoed assistant turn keeps its ids."""
    messages = ({"role": "user", "content": "a<|im_end|>b"},)
    ids = qwen.encoder.expand_text(qwen.engine.render(ChatInput(messages)), []).input_ids.tolist()
    end = qwen.processor.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert ids.count(end) == 3


@pytest.mark.parametrize(
    "chat",
    [
        ChatInput(({"role": "<|image_pad|>", "content": "x"},)),
        ChatInput(
            ({"role": "user", "content": "x"},),
            tools=({"type": "function", "function": {"name": "<|video_pad|>", "parameters": {}}},),
        ),
        ChatInput(({"role": "user", "content": "x"},), template_kwargs={"a": "<|image_pad|>"}),
    ],
)
def test_every_string_of_the_caller_is_sanitised(qwen: Served, chat: ChatInput):
    """Roles, tools and template variables are no way in."""
    prompt = qwen.engine.render(chat)
    ids = qwen.encoder.expand_text(prompt, []).input_ids.tolist()
    assert not set(ids) & set(qwen.engine.info.special_tokens.values())


def test_a_template_that_joins_strings_is_caught(qwen: Served):
    """What a template makes of harmless strings is checked afterwards."""
    template = "{% for m in messages %}{{ m.content | replace('X', '') }}{% endfor %}"
    chat = ChatInput(({"role": "user", "content": "<|image_Xpad|>"},), chat_template=template)
    with pytest.raises(InvalidRequestError, match="media token"):
        qwen.engine.render(chat)


@pytest.mark.parametrize(
    "chat",
    [
        ChatInput(({"role": "user", "content": "x"},), chat_template="{{ raise_exception('no') }}"),
        ChatInput(({"role": "user", "content": "x"},), chat_template="{{ ''.__class__.__mro__ }}"),
        ChatInput(({"role": "user", "content": "x"},), chat_template="{% for %}"),
        ChatInput(({"role": "user", "content": "x"},), template_kwargs={"tokenize": True}),
        ChatInput(("no message",)),  # type: ignore[arg-type]
    ],
)
def test_what_the_template_refuses_is_a_bad_request(qwen: Served, chat: ChatInput):
    """Sandbox and syntax errors, raised exceptions, reserved names; never the library's words."""
    with pytest.raises(InvalidRequestError) as caught:
        qwen.engine.render(chat)
    assert "no" not in caught.value.message.split()[-1]


def test_nesting_is_bounded(qwen: Served):
    """A deep structure does not exhaust the stack."""
    deep: list = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="deep"):
        qwen.engine.render(ChatInput(({"role": "user", "content": deep},)))


def test_a_model_without_a_template_says_so(model_dir: ModelDir):
    """Whisper renders no chat."""
    served = serve("whisper", model_dir("whisper"))
    with pytest.raises(InvalidRequestError, match="no chat template"):
        served.engine.render(ChatInput(({"role": "user", "content": "x"},)))
