"""Run-length coding of replacement texts."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from processors.replacement import code_runs, count_token, find_row_token
from processors.types import ReplacementPart

TOKENS = ["<p>", "<pp>", "[IMG]", "[IMG_BREAK]"]


def test_runs_of_tokens_are_counted():
    """Text between runs stands once."""
    parts = code_runs("<a><p><p><p></a>", ["<p>"])
    assert parts == (ReplacementPart("<a>"), ReplacementPart("<p>", 3), ReplacementPart("</a>"))


def test_without_tokens_the_text_is_one_part():
    """A model without media tokens has nothing to repeat."""
    assert code_runs("x", []) == (ReplacementPart("x"),)
    assert code_runs("", []) == ()


@given(st.lists(st.sampled_from([*TOKENS, "<", "p>", "\n", "é", "[IMG"]), max_size=40))
def test_coded_parts_joined_are_the_text(pieces: list[str]):
    """Nothing is lost or added, and no run of a token is cut in two."""
    text = "".join(pieces)
    parts = code_runs(text, TOKENS)
    assert "".join(part.text * part.times for part in parts) == text
    assert all(one.text != other.text for one, other in pairwise(parts))


def test_the_likeliest_row_token_that_occurs_is_taken():
    """Candidates that do not occur are passed over."""
    parts = (ReplacementPart("[IMG]", 2), ReplacementPart("[IMG_BREAK]"), ReplacementPart("[IMG]"))
    assert find_row_token(parts, ["<p>", "[IMG]", "[IMG_BREAK]"]) == ("[IMG]", 3)
    assert find_row_token(parts, ["<p>"]) == (None, 0)
    assert count_token(parts, "[IMG_BREAK]") == 1
