"""Chat templates of three plain shapes; the markers stand for a family's placeholders."""

_CONTENT = (
    "{%- if m.content is string -%}{{ m.content }}{%- else -%}{%- for c in m.content -%}"
    "{%- if c.type == 'image' -%}@image@{%- elif c.type == 'video' -%}@video@"
    "{%- elif c.type in ('audio', 'input_audio') -%}@audio@"
    "{%- elif c.type == 'text' -%}{{ c.text }}{%- endif -%}{%- endfor -%}{%- endif -%}"
)


def _fill(shape: str, image: str, video: str, audio: str) -> str:
    template = shape.replace("@content@", _CONTENT)
    for marker, text in (("@image@", image), ("@video@", video), ("@audio@", audio)):
        template = template.replace(marker, "{{ " + repr(text) + " }}")
    return template


def turns(
    start: str = "<|im_start|>",
    end: str = "<|im_end|>",
    *,
    image: str = "",
    video: str = "",
    audio: str = "",
    assistant: str = "assistant",
    before: str = "",
) -> str:
    """Return a template of turns between a start and an end token, as ChatML and Gemma have."""
    shape = (
        "@before@{%- for m in messages -%}@start@{{ m.role }}{{ '\\n' }}@content@@end@"
        "{{ '\\n' }}"
        "{%- endfor -%}{%- if add_generation_prompt -%}@start@@assistant@{{ '\\n' }}{%- endif -%}"
    )
    shape = shape.replace("@before@", before).replace("@start@", start).replace("@end@", end)
    return _fill(shape.replace("@assistant@", assistant), image, video, audio)


def plain(*, image: str = "", video: str = "", audio: str = "", start: str = "") -> str:
    """Return a template of `USER: ... ASSISTANT:` lines, as Vicuna has."""
    shape = (
        f"{start}{{%- for m in messages -%}}{{{{ m.role | upper }}}}: @content@{{{{ ' ' }}}}"
        "{%- endfor -%}{%- if add_generation_prompt -%}ASSISTANT:{%- endif -%}"
    )
    return _fill(shape, image, video, audio)


def roles(*, image: str = "", video: str = "", audio: str = "", start: str = "") -> str:
    """Return a template with one special token per role (`<|user|>`), as GLM and Phi have."""
    shape = (
        f"{start}{{%- for m in messages -%}}<|{{{{ m.role }}}}|>{{{{ '\\n' }}}}@content@"
        "{%- endfor -%}{%- if add_generation_prompt -%}<|assistant|>{{ '\\n' }}{%- endif -%}"
    )
    return _fill(shape, image, video, audio)


def instructions(*, image: str = "", audio: str = "") -> str:
    """Return a template of `[INST]` turns that opens with BOS, as Mistral has."""
    shape = (
        "{{ bos_token }}{%- for m in messages -%}{%- if m.role == 'user' -%}[INST]{%- endif -%}"
        "@content@{%- if m.role == 'user' -%}[/INST]{%- else -%}{{ eos_token }}{%- endif -%}"
        "{%- endfor -%}"
    )
    return _fill(shape, image, "", audio)
