"""What is written into prompts, and where."""

import re
from collections.abc import Iterator

import pytest

from processors.prompt_edits import edit_prompt
from processors.types import PromptEdit, RenderedPrompt


def find(text: str) -> Iterator[tuple[int, int, object]]:
    """Find images as a model's finder does."""
    for match in re.finditer("<image>", text):
        yield match.start(), match.end(), None


BOS = "<s>"
LEADING = PromptEdit("after_leading_media", BOS, unless="contains")
LAST = PromptEdit("after_last_media", BOS, needs_media=True)
START = PromptEdit("start", BOS, unless="starts")
END = PromptEdit("end", "\n")


@pytest.mark.parametrize(
    ("edit", "text", "expected"),
    [
        (LEADING, "<image><image>a <image>", "<image><image><s>a <image>"),
        (LEADING, "a<image>", "<s>a<image>"),
        (LEADING, "", "<s>"),
        (LEADING, "<image>a<s>", "<image>a<s>"),
        (LAST, "a<image>b<image>c", "a<image>b<image><s>c"),
        (LAST, "<s><image>", "<s><image><s>"),
        (LAST, "no picture", "no picture"),
        (START, "a", "<s>a"),
        (START, "<s>a", "<s>a"),
        (START, "a<s>", "<s>a<s>"),
        (END, "a", "a\n"),
        (END, "", "\n"),
    ],
)
def test_text_is_written_where_the_call_writes_it(edit: PromptEdit, text: str, expected: str):
    """One trusted piece."""
    assert edit_prompt(RenderedPrompt(((text, True),)), [edit], find).text == expected


def test_what_a_caller_typed_is_no_placeholder():
    """Only images of trusted text count, and pieces stay apart."""
    prompt = RenderedPrompt((("<image>", True), ("<image>", False), ("b", True)), False)
    edited = edit_prompt(prompt, [LAST, END], find)
    assert edited.pieces == (
        ("<image>", True), ("<s>", True), ("<image>", False), ("b", True), ("\n", True),
    )  # fmt: skip
    assert not edited.add_special_tokens


def test_edits_follow_each_other():
    """Each sees what those before it wrote."""
    twice = [START, START, PromptEdit("end", BOS, unless="contains")]
    assert edit_prompt(RenderedPrompt((("a", True),)), twice, find).text == "<s>a"
