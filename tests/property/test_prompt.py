"""Random prompts: expanded ids equal tokenizing the whole text, and every item is where it is."""

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from processors.errors import PlaceholderMismatchError
from processors.prompt import PromptEncoder
from processors.types import ItemPlan, Modality, RenderedPrompt
from tests.helpers.prompts import MEDIA, assert_as_whole, covered, model, plan, tokenizer, trusted

WIDE = "\uff10"  # a full-width zero, which NFKC makes a plain one
TEXT = st.lists(
    st.sampled_from([*"ab <>|\n\t.:é图🙂", WIDE, "\n\n", "  ", "image", "the "]), max_size=6
).map("".join) | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
KINDS = ["byte_level", "with_bos", "unigram_first", "unigram_always", "llama", "pieces"]
ROW = "<row>"
ROWS = {Modality.IMAGE: ROW, Modality.VIDEO: "<video>", Modality.AUDIO: "<audio>"}
"""Rows of their own tell two modalities apart that meet; two are their own placeholder."""
COUNTS = st.integers(1, 40)


@cache
def encoder(kind: str) -> PromptEncoder:
    return PromptEncoder(model(kind))


def parts(draw: Any, row: str) -> list[tuple[str, int]]:
    """Return one of the shapes that replacements have."""
    shape = draw(st.sampled_from(["run", "framed", "text", "rows", "frames"]))
    if shape == "run":
        return [(row, draw(COUNTS))]
    if shape == "framed":
        return [("<start>", 1), (row, draw(COUNTS)), ("<end>", 1)]
    if shape == "text":
        return [("\n\n", 1), (row, draw(COUNTS)), ("\n\n", 1)]
    if shape == "rows":
        width, height = draw(COUNTS), draw(st.integers(1, 4))
        return [(row, width), ("<break>", 1)] * (height - 1) + [(row, width), ("<end>", 1)]
    size = draw(COUNTS)
    frames = [[(f"<{n}.5 s>", 1), ("<frame>", 1), (row, size)] for n in range(draw(COUNTS) % 4 + 1)]
    return [part for frame in frames for part in frame]


@st.composite
def prompts(draw: Any, kind: str) -> list[str | ItemPlan]:
    """Return a prompt as texts and the plans of the items between them."""
    pieces: list[str | ItemPlan] = [draw(TEXT)]
    for _ in range(draw(st.integers(0, 4))):
        modality = draw(st.sampled_from(list(ROWS)))
        row = ROWS[modality]
        row_id = tokenizer(kind).token_to_id(row)
        pieces.append(plan(modality, parts(draw, row), row, row_id))
        pieces.append(draw(st.just("") | TEXT))
    return pieces


def unexpanded(pieces: list[str | ItemPlan]) -> str:
    return "".join(p if isinstance(p, str) else f"<{p.modality.value}>" for p in pieces)


def plans_of(pieces: list[str | ItemPlan]) -> list[ItemPlan]:
    return [p for p in pieces if isinstance(p, ItemPlan)]


def has_media(pieces: list[str | ItemPlan]) -> bool:
    """Return whether the texts make up a media token where they meet."""
    text = unexpanded(pieces)
    return any(text.count(t) != unexpanded(plans_of(pieces)).count(t) for t in MEDIA)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_text_equals_tokenizing_all_of_it(kind: str, data: st.DataObject):
    """Ids, offsets and spans are those of the whole expanded text, items at both ends too."""
    pieces = data.draw(prompts(kind))
    if has_media(pieces):
        return
    expanded = encoder(kind).expand_text(trusted(unexpanded(pieces)), plans_of(pieces))
    assert_as_whole(kind, expanded, pieces)


@pytest.mark.parametrize("kind", [*KINDS, "stripping", "single_word"])
@given(data=st.data())
def test_memory_expands_as_the_tokenizer_did(kind: str, data: st.DataObject):
    """What was expanded before comes out of memory the same, typed media tokens included."""
    pieces = data.draw(prompts(kind))
    texts = [(p if isinstance(p, str) else f"<{p.modality.value}>") for p in pieces]
    typed = data.draw(FRAGMENTS)
    prompt = RenderedPrompt((*((text, True) for text in texts), (typed, False)))
    plans = plans_of(pieces)
    try:
        expanded = encoder(kind).expand_text(prompt, plans)
    except PlaceholderMismatchError as error:
        with pytest.raises(PlaceholderMismatchError, match=re.escape(error.message)):
            encoder(kind).expand_text(prompt, plans, from_memory=True)
        return
    again = encoder(kind).expand_text(prompt, plans, from_memory=True)
    assert again.input_ids.tolist() == expanded.input_ids.tolist()
    assert again.placements == expanded.placements


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_ids_are_kept_and_runs_are_found_again(kind: str, data: st.DataObject):
    """Ids around placeholders stay; expanded ids are recognised as they are, in both modes."""
    pieces = data.draw(prompts(kind))
    vocabulary = sorted(set(range(tokenizer(kind).get_vocab_size())) - {
        tokenizer(kind).token_to_id(t) for t in MEDIA
    })  # fmt: skip
    words = st.lists(st.sampled_from(vocabulary), max_size=4)
    plans = plans_of(pieces)
    around = [data.draw(words) for _ in range(len(plans) + 1)]
    ids = list(around[0])
    for one, after in zip(plans, around[1:], strict=True):
        ids += [tokenizer(kind).token_to_id(f"<{one.modality.value}>"), *after]
    given_ids = np.array(ids, dtype=np.int32)

    expanded = encoder(kind).expand_ids(given_ids, plans)

    rest = expanded.input_ids.tolist()
    for placement, after in zip(reversed(expanded.placements), reversed(around[1:]), strict=True):
        assert placement.span is not None
        assert rest[placement.span[1] :] == after
        rest = rest[: placement.span[0]]
    assert rest == around[0]
    for placement, one in zip(expanded.placements, plans, strict=True):
        assert set(expanded.input_ids[covered(placement)].tolist()) == {one.row_token_id}
        assert placement.num_tokens == one.num_tokens == len(covered(placement))
    for mode in (True, "auto"):
        again = encoder(kind).expand_ids(expanded.input_ids, plans, expanded=mode)
        assert again.input_ids.tolist() == expanded.input_ids.tolist()
        assert [p.offsets for p in again.placements] == [p.offsets for p in expanded.placements]


@given(data=st.data())
def test_auto_expands_what_is_not_expanded(data: st.DataObject):
    """Any mix of expanded runs and single placeholders becomes the same prompt."""
    kind = "byte_level"
    row_id = tokenizer(kind).token_to_id(ROW)
    count = data.draw(st.integers(1, 4))
    plans = [
        plan(Modality.IMAGE, [("<start>", 1), (ROW, data.draw(COUNTS)), ("<end>", 1)], ROW, row_id)
        for _ in range(count)
    ]
    text = "a <image>" * count + "b"
    whole = encoder(kind).expand_text(trusted(text), plans)
    first = data.draw(st.integers(0, count))
    head = encoder(kind).expand_text(trusted("a <image>" * first), plans[:first]).input_ids
    tail = tokenizer(kind).encode("a <image>" * (count - first) + "b").ids
    mixed = np.concatenate([head, np.array(tail, dtype=np.int32)])
    expanded = encoder(kind).expand_ids(mixed, plans, expanded="auto")
    assert expanded.input_ids.tolist() == whole.input_ids.tolist()
    assert expanded.placements == whole.placements


FRAGMENTS = st.lists(
    st.sampled_from(
        [*MEDIA, "<ima", "ge>", "<ro", "w>", "<", ">", " ", "\n", "x", "\uff1cimage\uff1e", "<s>"]
    ),
    max_size=6,
).map("".join)


@pytest.mark.parametrize("kind", [*KINDS, "stripping", "single_word"])
@given(data=st.data())
def test_typed_text_never_makes_a_media_token(kind: str, data: st.DataObject):
    """Media tokens stand in trusted text alone, however the pieces meet; the text survives."""
    row_id = tokenizer(kind).token_to_id(ROW)
    one = plan(Modality.IMAGE, [(ROW, data.draw(COUNTS))], ROW, row_id)
    typed = [data.draw(FRAGMENTS), data.draw(FRAGMENTS), data.draw(FRAGMENTS)]
    pieces = (
        (typed[0], False),
        (" <start>", True),
        (typed[1], False),
        ("<end> <image> <end>", True),
        (typed[2], False),
    )
    expanded = encoder(kind).expand_text(RenderedPrompt(pieces, False), [one])
    ids = expanded.input_ids.tolist()
    (placement,) = expanded.placements
    counts = {t: ids.count(tokenizer(kind).token_to_id(t)) for t in MEDIA}
    expected = dict.fromkeys(MEDIA, 0) | {"<start>": 1, "<end>": 2, ROW: one.num_tokens}
    if kind != "single_word":  # where a word beside it makes a token plain
        assert counts == expected
    assert all(counts[t] <= expected[t] for t in MEDIA)
    assert covered(placement) == [n for n, i in enumerate(ids) if i == row_id]
    if kind in ("byte_level", "with_bos"):
        text = "".join(text for text, _ in pieces).replace("<image>", ROW * one.num_tokens, 1)
        if "<image>" not in "".join(typed[:2]):
            assert tokenizer(kind).decode(ids, skip_special_tokens=False) == text
