"""Prompts expanded: the cases that have a name."""

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from processors.errors import (
    InvalidRequestError,
    PlaceholderMismatchError,
    PromptTooLongError,
)
from processors.prompt import PromptEncoder
from processors.tokenizing import (
    MAX_REMEMBERED_CHARS,
    MAX_REMEMBERED_PROMPT_CHARS,
    NotRememberedError,
    TextTokenizer,
)
from processors.types import Modality, PlaceholderSpec, RenderedPrompt
from tests.helpers.prompts import assert_as_whole, covered, model, plan, tokenizer, trusted

IMAGE, VIDEO, AUDIO = Modality.IMAGE, Modality.VIDEO, Modality.AUDIO
ENCODER = PromptEncoder(model())


def token(text: str, kind: str = "byte_level") -> int:
    return tokenizer(kind).token_to_id(text)


def ids(*texts: str) -> np.ndarray:
    """Return the ids of texts, tokenized one by one."""
    parts = [tokenizer("byte_level").encode(t).ids for t in texts]
    return np.array([i for part in parts for i in part], dtype=np.int32)


def image(*parts: tuple[str, int], **more):
    """Return an image's plan, by default of three rows."""
    return plan(IMAGE, parts or [("<row>", 3)], "<row>", token("<row>"), **more)


def offsets(expanded) -> list:
    return [p.offsets for p in expanded.placements]


def spans(expanded) -> list:
    return [p.span for p in expanded.placements]


def test_adjacent_items_are_separate_at_both_ends():
    """Three items that fill the prompt each have their own range."""
    plans = [image(("<row>", n)) for n in (3, 1, 2)]
    expanded = ENCODER.expand_text(trusted("<image>" * 3), plans)
    assert expanded.input_ids.tolist() == [token("<row>")] * 6
    assert offsets(expanded) == [((0, 3),), ((3, 4),), ((4, 6),)]
    assert [p.index for p in expanded.placements] == [0, 1, 2]
    assert {p.token_id for p in expanded.placements} == {token("<row>")}


def test_rows_and_separators_make_several_runs():
    """Row breaks are in the span and in no run."""
    one = image(("<row>", 2), ("<break>", 1), ("<row>", 2), ("<end>", 1))
    expanded = ENCODER.expand_text(trusted("<image>"), [one])
    assert offsets(expanded) == [((0, 2), (3, 5))]
    assert spans(expanded) == [(0, 6)]


def test_parts_that_touch_are_one_run():
    """A run that a plan tells in two parts is one."""
    expanded = ENCODER.expand_text(trusted("<image>"), [image(("<row>", 2), ("<row>", 3))])
    assert offsets(expanded) == [((0, 5),)]


def test_text_that_joins_with_its_neighbour_belongs_to_the_span():
    """Newlines around an image merge with those of the text, as in tokenizing all of it."""
    framed = image(("\n\n", 1), ("<start>", 1), ("<row>", 4), ("<end>", 1), ("\n\n", 1))
    expanded = ENCODER.expand_text(trusted("a\n<image>\nb"), [framed])
    assert_as_whole("byte_level", expanded, ["a\n", framed, "\nb"])
    joined = tokenizer("byte_level").encode("a\n\n\n").ids
    assert expanded.input_ids.tolist()[: len(joined)] == joined
    (span,) = spans(expanded)
    assert span[0] < len(joined)


def test_a_token_shared_by_two_items_belongs_to_both_spans():
    """Where the edges of two neighbours merge, their spans overlap and their rows do not."""
    framed = image(("\n", 1), ("<row>", 1), ("\n", 1))
    expanded = ENCODER.expand_text(trusted("<image><image>"), [framed, framed])
    assert_as_whole("byte_level", expanded, [framed, framed])
    first, second = spans(expanded)
    assert first[1] == second[0] + 1


def test_items_of_all_modalities_take_their_own_placeholders():
    """Order in the prompt decides, not order of the plans."""
    row = token("<row>")
    plans = [image(), plan(AUDIO, [("<row>", 2)], "<row>", row), image(("<row>", 1))]
    expanded = ENCODER.expand_text(trusted("<image> <audio> <image>"), plans)
    assert [(p.modality, p.index, p.num_tokens) for p in expanded.placements] == [
        (IMAGE, 0, 3), (AUDIO, 0, 2), (IMAGE, 1, 1),
    ]  # fmt: skip


def test_cross_attention_takes_no_rows():
    """The placeholder stays, the span is the placeholder."""
    one = plan(IMAGE, [("<image>", 1)], None, None)
    expanded = ENCODER.expand_text(trusted("a <image> b"), [one])
    assert offsets(expanded) == [()]
    start, stop = spans(expanded)[0]
    assert expanded.input_ids[start:stop].tolist() == [token("<image>")]


def test_an_empty_replacement_leaves_an_empty_span():
    """Nothing is put where nothing is to be, at the very end too."""
    expanded = ENCODER.expand_text(trusted("a<image>"), [plan(IMAGE, [], None, None)])
    assert spans(expanded) == [(1, 1)]
    assert offsets(expanded) == [()]


def test_media_without_a_placeholder_stand_beside_the_text():
    """Audio of a model whose text has no word for it is not counted and not placed."""
    info = model(placeholders={IMAGE: PlaceholderSpec("<image>", token("<image>"))})
    encoder = PromptEncoder(info)
    sound = plan(AUDIO, [], None, None)
    encoder.check_counts(trusted("<image>"), {IMAGE: 1, AUDIO: 1})
    assert len(encoder.expand_text(trusted("<image>"), [sound, image()]).placements) == 1


def test_a_video_s_sound_stands_in_its_video():
    """The sound without a placeholder has the video's span and its own rows, after the video."""
    video_id, audio_id = token("<video>"), token("<audio>")
    parts = [("<video>", 4), ("<audio>", 2), ("<video>", 4), ("<audio>", 1)]
    video = plan(VIDEO, [("<start>", 1), *parts, ("<end>", 1)], "<video>", video_id)
    silent = plan(VIDEO, [("<video>", 2)], "<video>", video_id)
    clip = plan(AUDIO, [("<audio>", 5)], "<audio>", audio_id)
    sound = plan(AUDIO, [], "<audio>", audio_id, num_tokens=3)
    text = "<audio> <video> <video>"
    plans = [silent, video, clip, sound]
    expanded = ENCODER.expand_text(trusted(text), plans)
    placed = {(p.modality, p.index): p for p in expanded.placements}
    assert [(p.modality, p.index) for p in expanded.placements] == [
        (AUDIO, 0), (VIDEO, 0), (VIDEO, 1), (AUDIO, 1),
    ]  # fmt: skip
    assert placed[AUDIO, 1].span == placed[VIDEO, 1].span
    both = sorted([*covered(placed[AUDIO, 1]), *covered(placed[VIDEO, 1])])
    assert both == list(range(both[0], both[0] + 11))
    given = ids("<audio>", " ", "<video>", " ", "<video>")
    for mode, source in ((False, given), (True, expanded.input_ids), ("auto", given)):
        again = ENCODER.expand_ids(source, plans, expanded=mode)
        assert offsets(again) == offsets(expanded)
        assert spans(again) == spans(expanded)


def test_a_sound_without_its_video_is_a_mismatch():
    """No placeholder holds it."""
    sound = plan(AUDIO, [], "<audio>", token("<audio>"), num_tokens=3)
    with pytest.raises(PlaceholderMismatchError, match=r"0 audio placeholder.* 1 audio"):
        ENCODER.expand_text(trusted("a"), [sound])


@pytest.mark.parametrize(
    ("text", "count", "message"),
    [
        ("<image> <image>", 1, "2 image placeholder(s) and the request 1 image(s)"),
        ("<image>", 2, "1 image placeholder(s) and the request 2 image(s)"),
        ("nothing", 1, "0 image placeholder(s) and the request 1 image(s)"),
    ],
)
def test_a_mismatch_says_both_numbers(text, count, message):
    """Text and ids alike, before planning and after."""
    for source, param in ((trusted(text), "prompt"), (ids(*text.split()), "input_ids")):
        expand = ENCODER.expand_text if param == "prompt" else ENCODER.expand_ids
        with pytest.raises(PlaceholderMismatchError) as early:
            ENCODER.check_counts(source, {IMAGE: count})
        with pytest.raises(PlaceholderMismatchError) as late:
            expand(source, [image()] * count)
        assert message in early.value.message
        assert message in late.value.message
        assert early.value.param == late.value.param == param
    ENCODER.check_counts(trusted(text), {IMAGE: text.count("<image>")})


def test_lenient_drops_what_is_surplus():
    """The walk goes on without placeholders or items that have no partner, and warns."""
    for expand, source in (
        (ENCODER.expand_text, lambda t: trusted("".join(t))),
        (ENCODER.expand_ids, lambda t: ids(*t)),
    ):
        fewer = expand(source(["a", "<image>", "b", "<image>", "c"]), [image()], lenient=True)
        assert fewer.input_ids.tolist() == ids("a", *["<row>"] * 3, "b", "c").tolist()
        assert [code for code, _ in fewer.warnings] == ["surplus_dropped"]
        more = expand(source(["<image>"]), [image(), image()], lenient=True)
        assert [p.index for p in more.placements] == [0]
        assert "1 image placeholder(s)" in more.warnings[0][1]


def test_rows_outside_the_items_are_refused():
    """An engine would bind features to them."""
    framed = image(("<start>", 1), ("<row>", 2))
    for text in ("<row> <image>", "<image> <row>"):
        with pytest.raises(PlaceholderMismatchError, match=r"1 token.s. that stand for features"):
            ENCODER.expand_text(trusted(text), [framed])


def test_row_tokens_of_another_item_are_told_apart():
    """A video whose frames are made of the image's token keeps its rows."""
    row = token("<row>")
    video = plan(VIDEO, [("<frame>", 1), ("<row>", 2), ("0.5", 1), ("<row>", 2)], "<row>", row)
    expanded = ENCODER.expand_text(trusted("<image><video><image>"), [image(), video, image()])
    assert_as_whole("byte_level", expanded, [image(), video, image()])


def test_bos_is_not_written_twice():
    """The tokenizer's BOS is added once, unless the text writes it or a template did."""
    encoder = PromptEncoder(model("with_bos"))
    bos = token("<s>", "with_bos")
    plain = encoder.expand_text(trusted("a<image>", add_special_tokens=True), [image()])
    written = encoder.expand_text(trusted("<s>a<image>", add_special_tokens=True), [image()])
    rendered = encoder.expand_text(trusted("a<image>"), [image()])
    assert plain.input_ids.tolist() == written.input_ids.tolist()
    assert plain.input_ids.tolist() == [bos, *rendered.input_ids.tolist()]
    assert offsets(plain) == offsets(written) == [((2, 5),)]
    assert offsets(rendered) == [((1, 4),)]


def test_without_specials_of_its_own_nothing_is_added():
    """A tokenizer that adds nothing keeps a text as it is."""
    text = ENCODER.expand_text(trusted("<s>a", add_special_tokens=True), [])
    assert text.input_ids.tolist() == ids("<s>a").tolist()


def test_pieces_of_one_kind_are_one_text():
    """A placeholder that is cut over trusted pieces is still one."""
    prompt = RenderedPrompt((("a<ima", True), ("ge>b", True)), False)
    assert ENCODER.count(prompt)[IMAGE] == 1
    assert len(ENCODER.expand_text(prompt, [image()]).placements) == 1


@pytest.mark.parametrize(
    "pieces",
    [
        (("<image>", False),),
        (("<ima", False), ("ge>", True)),
        (("<ima", True), ("ge>", False)),
        (("see <row", False), ("> now", True)),
        (("<ima", False), ("", True), ("ge>", False)),
    ],
)
def test_what_is_typed_is_no_media_token(pieces):
    """Neither alone nor together with its neighbours; the text stays."""
    prompt = RenderedPrompt(pieces, False)
    assert ENCODER.count(prompt)[IMAGE] == 0
    expanded = ENCODER.expand_text(prompt, [])
    assert not {token("<image>"), token("<row>")} & set(expanded.input_ids.tolist())
    assert tokenizer("byte_level").decode(expanded.input_ids.tolist()) == prompt.text


def test_other_special_tokens_keep_their_meaning_when_typed():
    """An echoed turn has the ids it had."""
    expanded = ENCODER.expand_text(RenderedPrompt((("<s>a<image>", False),), False), [])
    assert expanded.input_ids.tolist()[:2] == ids("<s>a").tolist()


def test_spaces_that_a_token_takes_along_do_not_make_it_typed():
    """A trusted token beside typed spaces stays what it is, a typed one is spelled with them."""
    encoder = PromptEncoder(model("stripping"))
    pieces = (("x ", False), ("<start>", True), (" y <start> z", False))
    expanded = encoder.expand_text(RenderedPrompt(pieces, False), [])
    found = expanded.input_ids.tolist()
    assert found.count(token("<start>", "stripping")) == 1
    assert tokenizer("stripping").decode(found, skip_special_tokens=False) == "x<start>y <start> z"


def test_what_has_no_other_spelling_is_refused():
    """A vocabulary whose every text is a media token cannot say a typed one."""
    words = Tokenizer(models.WordLevel({"<unk>": 0, "<image>": 1}, unk_token="<unk>"))
    words.add_special_tokens(["<image>"])
    info = model(
        tokenizer_json=words.to_str().encode(),
        placeholders={IMAGE: PlaceholderSpec("<image>", 1)},
        special_tokens={"image": 1, "unknown": 0},
    )
    with pytest.raises(InvalidRequestError, match="cannot be told from a media token"):
        PromptEncoder(info).expand_text(RenderedPrompt((("<image>", False),), False), [])


def test_runs_that_the_tokenizer_does_not_keep_apart_are_written_out():
    """A token that doubles into another one is not collapsed, and its rows are refused."""
    doubling = Tokenizer.from_str(tokenizer("byte_level").to_str())
    doubling.add_special_tokens(["<row><row>"])
    encoder = PromptEncoder(model(tokenizer_json=doubling.to_str().encode()))
    single = encoder.expand_text(trusted("<image>"), [image(("<row>", 1))])
    assert offsets(single) == [((0, 1),)]
    with pytest.raises(PlaceholderMismatchError, match="joins with the text"):
        encoder.expand_text(trusted("<image>"), [image(("<row>", 2))])


def test_a_row_that_joins_with_the_text_beside_it_is_refused():
    """A longer token of the vocabulary would swallow a row, collapsed or not."""
    swallowing = Tokenizer.from_str(tokenizer("byte_level").to_str())
    swallowing.add_tokens([AddedToken("x<row>", normalized=False)])
    encoder = PromptEncoder(model(tokenizer_json=swallowing.to_str().encode()))
    with pytest.raises(PlaceholderMismatchError, match="joins with the text"):
        encoder.expand_text(trusted("x<image>"), [image()])


def test_a_word_that_is_no_token_when_repeated_is_refused_not_mis_split():
    """A whole-word token collapses to something else than it was."""
    words = Tokenizer.from_str(tokenizer("byte_level").to_str())
    words.add_special_tokens([AddedToken("IMG", single_word=True)])
    encoder = PromptEncoder(model(tokenizer_json=words.to_str().encode()))
    with pytest.raises(PlaceholderMismatchError, match="joins with the text"):
        encoder.expand_text(
            trusted("<image>"), [plan(IMAGE, [("IMG", 2)], "IMG", words.token_to_id("IMG"))]
        )


def test_numbered_placeholders_are_found_in_text_and_ids():
    """A pattern's spellings count as the placeholder, however many tokens they are."""
    numbered = PlaceholderSpec("<image>", token("<image>"), r"<\|image_\d+\|>")
    encoder = PromptEncoder(model(placeholders={IMAGE: numbered}))
    text = "a <|image_1|> b <|image_22|><image>"
    plans = [image(("<row>", n)) for n in (2, 1, 3)]
    expanded = encoder.expand_text(trusted(text), plans)
    assert [p.num_tokens for p in expanded.placements] == [2, 1, 3]
    separate = ids("a ", "<|image_1|>", " b ", "<|image_22|>", "<image>")
    assert encoder.count(separate) == {IMAGE: 3}
    from_ids = encoder.expand_ids(separate, plans)
    assert from_ids.input_ids.tolist() == expanded.input_ids.tolist()
    assert from_ids.placements == expanded.placements


def test_unknown_ids_beside_a_numbered_placeholder_stay():
    """What the vocabulary does not know is kept, before and behind."""
    numbered = PlaceholderSpec("q", None, r"<\|image_\d+\|>")
    encoder = PromptEncoder(model(placeholders={IMAGE: numbered}))
    unknown = np.array([90_000], dtype=np.int32)
    given = np.concatenate([unknown, ids("<|image_1|>"), unknown])
    expanded = encoder.expand_ids(given, [image()])
    assert expanded.input_ids.tolist() == [90_000, *[token("<row>")] * 3, 90_000]


def test_spellings_that_do_not_end_with_a_token_are_no_placeholders():
    """Ids are never cut."""
    encoder = PromptEncoder(model(placeholders={IMAGE: PlaceholderSpec("q", None, "ma")}))
    assert tokenizer("byte_level").encode("image").tokens == ["i", "mag", "e"]
    assert encoder.count(ids("image")) == {IMAGE: 0}


def test_placeholders_of_several_tokens_are_found_in_ids():
    """A placeholder that is plain text is the ids it is tokenized to, and none overlap."""
    encoder = PromptEncoder(model(placeholders={IMAGE: PlaceholderSpec("||", None)}))
    pair = ids("|", "|")
    assert encoder.count(ids("a", "|", "|", "b", "|")) == {IMAGE: 1}
    overlapping = np.concatenate([pair, pair[:1], ids("c"), pair])
    expanded = encoder.expand_ids(overlapping, [image(), image()])
    assert offsets(expanded) == [((0, 3),), ((5, 8),)]
    assert encoder.count(ids("|")) == {IMAGE: 0}


def test_modalities_that_share_a_placeholder_take_it_in_the_order_given():
    """One spelling for two modalities is counted once and told by the plans' order."""
    shared = PlaceholderSpec("<image>", token("<image>"))
    encoder = PromptEncoder(model(placeholders={IMAGE: shared, VIDEO: shared}))
    video = plan(VIDEO, [("<frame>", 1), ("<row>", 2)], "<row>", token("<row>"))
    encoder.check_counts(trusted("<image><image>"), {IMAGE: 1, VIDEO: 1})
    expanded = encoder.expand_text(trusted("<image><image>"), [video, image()])
    assert [p.modality for p in expanded.placements] == [VIDEO, IMAGE]
    with pytest.raises(PlaceholderMismatchError, match="1 image or video placeholder"):
        encoder.check_counts(trusted("<image>"), {IMAGE: 1, VIDEO: 1})


def test_ids_stay_as_they_are():
    """What is not canonical is kept."""
    odd = ids("i", "m", "a", "g", "e", "<image>", "t", "h", "e")
    expanded = ENCODER.expand_ids(odd, [image()])
    assert expanded.input_ids.tolist() == [*odd[:5], *[token("<row>")] * 3, *odd[6:]]
    assert expanded.input_ids.dtype == np.int32


def test_ids_at_the_start_expand_as_text_at_the_start_does():
    """A tokenizer that opens a text with a space does so for an item there."""
    encoder = PromptEncoder(model("llama"))
    row = token("<row>", "llama")
    one = plan(IMAGE, [("a", 1), ("<row>", 2)], "<row>", row)
    from_text = encoder.expand_text(trusted("<image>"), [one])
    from_ids = encoder.expand_ids(np.array([token("<image>", "llama")], dtype=np.int32), [one])
    assert from_ids.input_ids.tolist() == from_text.input_ids.tolist()


FRAMED = image(("\n\n", 1), ("<start>", 1), ("<row>", 2), ("<end>", 1), ("\n\n", 1))
CORE = ("<start>", "<row>", "<row>", "<end>")


@pytest.mark.parametrize("mode", [True, "auto"])
def test_expanded_text_around_a_run_is_in_the_span_where_it_is_unchanged(mode):
    """Where it has been joined to its neighbours, the span is from the first media token on."""
    whole = ENCODER.expand_ids(ids("a", "\n\n", *CORE, "\n\n", "b"), [FRAMED], expanded=mode)
    assert spans(whole) == [(1, 7)]
    joined = ENCODER.expand_ids(ids("a", "\n\n\n", *CORE, "\n", "b"), [FRAMED], expanded=mode)
    assert spans(joined) == [(3, 7)]
    assert offsets(whole) == [((3, 5),)]
    assert offsets(joined) == [((4, 6),)]
    alone = ENCODER.expand_ids(ids(*CORE), [FRAMED], expanded=mode)
    assert spans(alone) == [(0, 4)]


def test_auto_reads_left_to_right():
    """What equals the whole run stays first, then single placeholders expand."""
    row = token("<row>")
    direct = PromptEncoder(model(placeholders={IMAGE: PlaceholderSpec("<row>", row)}))
    three, one = image(("<row>", 3)), image(("<row>", 1))
    mixed = ids("a", *["<row>"] * 4, "b")
    expanded = direct.expand_ids(mixed, [three, three], expanded="auto")
    assert expanded.input_ids.tolist() == ids("a", *["<row>"] * 6, "b").tolist()
    assert offsets(expanded) == [((1, 4),), ((4, 7),)]
    assert offsets(direct.expand_ids(ids("<row>"), [one], expanded="auto")) == [((0, 1),)]


@pytest.mark.parametrize("mode", [True, "auto"])
def test_a_run_of_another_length_is_refused(mode):
    """Neither a whole run nor a placeholder."""
    for rows in (2, 4):
        with pytest.raises(PlaceholderMismatchError):
            ENCODER.expand_ids(ids("a", *["<row>"] * rows), [image()], expanded=mode)
    with pytest.raises(PlaceholderMismatchError, match=r"0 image placeholder.* 1 image"):
        ENCODER.expand_ids(ids("a"), [image()], expanded=mode)


def test_expanded_ids_hold_no_placeholders():
    """A single placeholder where runs are promised is refused."""
    with pytest.raises(PlaceholderMismatchError, match="position 0"):
        ENCODER.expand_ids(ids("<image>"), [image()], expanded=True)


@pytest.mark.parametrize("mode", [True, "auto"])
def test_lenient_drops_rows_that_no_item_is_left_for(mode):
    """Runs and placeholders behind the last item go, with a warning."""
    encoder = PromptEncoder(model(placeholders={IMAGE: PlaceholderSpec("|<row>", None)}))
    given = ids(*["<row>"] * 3, "a", "<row>", "<row>", "b", "|", "<row>", "c")
    expanded = encoder.expand_ids(given, [image()], expanded=mode, lenient=True)
    assert expanded.input_ids.tolist() == ids(*["<row>"] * 3, "a", "b", "c").tolist()
    assert [code for code, _ in expanded.warnings] == ["surplus_dropped"]
    with pytest.raises(PlaceholderMismatchError):
        encoder.expand_ids(given, [image()], expanded=mode)


def test_a_replacement_without_media_tokens_is_its_own_core():
    """Plain text in a placeholder's place is matched as a whole."""
    plain = plan(IMAGE, [("the ", 1)], None, None)
    expanded = ENCODER.expand_ids(ids("<image>"), [plain])
    assert expanded.input_ids.tolist() == ids("the ").tolist()
    assert offsets(expanded) == [()]


@pytest.mark.parametrize("kind", ["byte_level", "pieces"])
def test_a_prompt_over_its_limit_is_refused_before_it_is_made(kind):
    """A thousand million rows are never allocated."""
    encoder = PromptEncoder(model(kind))
    huge = plan(IMAGE, [("<row>", 10**9)], "<row>", token("<row>", kind))
    source = np.array([token("<image>", kind)], dtype=np.int32)
    with pytest.raises(PromptTooLongError, match="at most 1000"):
        encoder.expand_text(trusted("<image>"), [huge], max_tokens=1000)
    with pytest.raises(PromptTooLongError, match="at most 1000"):
        encoder.expand_ids(source, [huge], max_tokens=1000)


def test_the_limit_counts_every_token():
    """Text counts as rows do, exactly."""
    text, plans = trusted("a <image> b"), [image()]
    length = len(ENCODER.expand_text(text, plans).input_ids)
    assert len(ENCODER.expand_text(text, plans, max_tokens=length).input_ids) == length
    with pytest.raises(PromptTooLongError):
        ENCODER.expand_text(text, plans, max_tokens=length - 1)
    source = ids("a", "<image>", "b")
    assert len(ENCODER.expand_ids(source, plans, max_tokens=5).input_ids) == 5
    with pytest.raises(PromptTooLongError):
        ENCODER.expand_ids(source, plans, max_tokens=4)


def test_lone_surrogates_are_refused():
    """Text that has no bytes is the client's error."""
    with pytest.raises(InvalidRequestError, match="valid Unicode"):
        ENCODER.expand_text(trusted("a\ud800"), [])


def test_without_a_tokenizer_ids_expand_to_placeholders():
    """Replacements made of placeholders need no tokenizer, all else does."""
    row = 7
    placeholders = {IMAGE: PlaceholderSpec("<image>", row), AUDIO: PlaceholderSpec("x", None)}
    encoder = PromptEncoder(model(None, placeholders))
    one = plan(IMAGE, [("<image>", 2), ("<image>", 1)], "<image>", row)
    given = np.array([1, row, 2], dtype=np.int32)
    expanded = encoder.expand_ids(given, [one])
    assert expanded.input_ids.tolist() == [1, row, row, row, 2]
    assert offsets(expanded) == [((1, 4),)]
    assert offsets(encoder.expand_ids(expanded.input_ids, [one], expanded=True)) == [((1, 4),)]
    assert encoder.count(given) == {IMAGE: 1, AUDIO: 0}
    with pytest.raises(InvalidRequestError, match="no tokenizer to expand"):
        encoder.expand_ids(given, [plan(IMAGE, [("<row>", 1)], "<row>", row)])
    with pytest.raises(InvalidRequestError, match="no tokenizer for text"):
        encoder.expand_text(trusted("a"), [])


def test_an_empty_prompt_is_empty():
    """Neither text nor ids need anything in them."""
    assert ENCODER.expand_text(RenderedPrompt((), False), []).input_ids.tolist() == []
    empty = ENCODER.expand_ids(np.zeros(0, dtype=np.int32), [], expanded="auto")
    assert empty.input_ids.tolist() == []


def test_a_model_without_placeholders_encodes_text():
    """Text alone needs none."""
    encoder = PromptEncoder(model(placeholders={}))
    assert encoder.count(trusted("<image>")) == {}
    assert encoder.expand_text(trusted("the "), []).input_ids.tolist() == ids("the ").tolist()


def test_a_tokenizer_without_added_tokens_has_no_anchor():
    """Replacements are then tokenized as texts of their own."""
    bare = Tokenizer(models.WordLevel({"<unk>": 0, "row": 1, "img": 2}, unk_token="<unk>"))
    bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    info = model(
        tokenizer_json=bare.to_str().encode(),
        placeholders={IMAGE: PlaceholderSpec("img", 2)},
        special_tokens={},
    )
    encoder = PromptEncoder(info)
    one = plan(IMAGE, [("row ", 3)], "row", 1)
    from_ids = encoder.expand_ids(np.array([0, 2], dtype=np.int32), [one])
    assert from_ids.input_ids.tolist() == [0, 1, 1, 1]
    assert offsets(encoder.expand_text(trusted("x img"), [one])) == [((1, 4),)]


def test_nothing_is_added_where_the_processors_call_adds_nothing():
    """Some processors call a tokenizer that adds BOS, and tell it not to."""
    encoder = PromptEncoder(model("with_bos", adds_special_tokens=False))
    expanded = encoder.expand_text(trusted("a<image>", add_special_tokens=True), [image()])
    rendered = encoder.expand_text(trusted("a<image>"), [image()])
    assert expanded.input_ids.tolist() == rendered.input_ids.tolist()
    written, _ = encoder.for_worker(trusted("a<image>", add_special_tokens=True), [image()])
    assert not written.add_special_tokens


def test_tokens_before_and_after_are_found():
    """A tokenizer that adds an end is asked for it too, and not where the text writes BOS."""
    from tokenizers import processors

    framing = Tokenizer.from_str(tokenizer("byte_level").to_str())
    both = [(t, framing.token_to_id(t)) for t in ("<s>", "<end>")]
    framing.post_processor = processors.TemplateProcessing(
        single="<s> $A <end>", pair="<s> $A $B", special_tokens=both
    )
    encoder = PromptEncoder(model(tokenizer_json=framing.to_str().encode(), special_tokens={}))
    text = encoder.expand_text(trusted("a", add_special_tokens=True), [])
    assert text.input_ids.tolist() == ids("<s>", "a", "<end>").tolist()


def test_a_vocabulary_without_a_word_for_anything_adds_nothing():
    """What a tokenizer adds is found even if it drops all else."""
    silent = Tokenizer(models.BPE({"b": 0}, []))
    assert TextTokenizer(silent.to_str().encode(), ()).prefix.tolist() == []


def test_long_texts_are_not_remembered():
    """A table of what callers send is bounded in characters too."""
    text = "a" * (MAX_REMEMBERED_CHARS + 1)
    reader = TextTokenizer(tokenizer("byte_level").to_str().encode(), ())
    assert reader.encode_inside(text).ids.tolist() == ids(text).tolist()


def test_memory_never_tokenizes():
    """What was not expanded before is refused, whatever part of it is new."""
    encoder = PromptEncoder(model())
    prompt, plans = trusted("a<image>b"), [image()]
    with pytest.raises(NotRememberedError):
        encoder.expand_text(prompt, plans, from_memory=True)
    encoder.expand_text(prompt, plans)
    encoder.expand_text(prompt, [image(("<row>", 7))], from_memory=True)
    for other in (trusted("a<image>c"), RenderedPrompt((("a<image>", True), ("<row>", False)))):
        with pytest.raises(NotRememberedError):
            encoder.expand_text(other, plans, from_memory=True)
    with pytest.raises(NotRememberedError):
        encoder.expand_text(prompt, [image(("<break>", 2), ("<row>", 3))], from_memory=True)


def test_a_remembered_prompt_is_still_refused_for_its_length():
    """The bound is the request's, whatever was expanded before; what is shared is not writable."""
    encoder = PromptEncoder(model())
    prompt, plans = trusted("a<image>b"), [image(("<row>", 100))]
    expanded = encoder.expand_text(prompt, plans, max_tokens=102)
    assert encoder.expand_text(prompt, plans, max_tokens=102, from_memory=True) is expanded
    assert not expanded.input_ids.flags.writeable
    for from_memory in (False, True):
        with pytest.raises(PromptTooLongError):
            encoder.expand_text(prompt, plans, max_tokens=101, from_memory=from_memory)


def test_items_and_leniency_tell_remembered_prompts_apart():
    """Another size, another row, or a surplus that was dropped is another prompt."""
    encoder = PromptEncoder(model())
    prompt = trusted("a<image>b<image>")
    one, other = image(("<row>", 2)), image(("<row>", 3))
    first = encoder.expand_text(prompt, [one, other])
    second = encoder.expand_text(prompt, [other, one])
    assert offsets(first) == [((1, 3),), ((4, 7),)]
    assert offsets(second) == [((1, 4),), ((5, 7),)]
    dropped = encoder.expand_text(prompt, [one], lenient=True)
    assert dropped.warnings
    with pytest.raises(PlaceholderMismatchError):
        encoder.expand_text(prompt, [one])
    with_bos = RenderedPrompt(prompt.pieces, add_special_tokens=True)
    encoder = PromptEncoder(model("with_bos"))
    lengths = [len(encoder.expand_text(p, [one, other]).input_ids) for p in (prompt, with_bos)]
    assert lengths[1] == lengths[0] + 1


def test_long_prompts_are_not_remembered():
    """A long prompt is tokenized each time, so that memory holds many short ones."""
    prompt = trusted("a" * (MAX_REMEMBERED_PROMPT_CHARS + 1))
    ENCODER.expand_text(prompt, [])
    with pytest.raises(NotRememberedError):
        ENCODER.expand_text(prompt, [], from_memory=True)
