"""The bounded table of computed values."""

from processors.memo import Memo


def test_values_are_computed_once_and_the_oldest_use_goes():
    """A use keeps a value; the one not used longest makes room."""
    computed: list[str] = []

    def get(key: str) -> str:
        return memo.get(key, lambda: computed.append(key) or key.upper())

    memo: Memo[str, str] = Memo(2)
    assert [get("a"), get("b"), get("a"), get("c"), get("a"), get("b")] == list("ABACAB")
    assert computed == ["a", "b", "c", "b"]


def test_values_weigh_what_they_are_said_to():
    """Old values go until the rest weighs no more than allowed; one too heavy is not kept."""
    memo: Memo[str, str] = Memo(6, lambda key, value: len(key) + len(value))
    assert memo.get("a", lambda: "12") == "12"
    assert memo.get("b", lambda: "12") == "12"
    assert (memo.find("a"), memo.find("b")) == ("12", "12")
    memo.get("c", lambda: "1")
    assert (memo.find("a"), memo.find("b"), memo.find("c")) == (None, "12", "1")
    assert memo.get("d", lambda: "123456") == "123456"
    assert [memo.find(key) for key in "abcd"] == [None] * 4


def test_values_are_kept_and_found():
    """What was not kept is not found; a find keeps a value, and what is kept anew is replaced."""
    memo: Memo[str, int] = Memo(2)
    assert memo.find("a") is None
    memo.keep("a", 1)
    memo.keep("b", 2)
    assert memo.find("a") == 1
    memo.keep("c", 3)
    memo.keep("a", 4)
    assert [memo.find(key) for key in "abc"] == [4, None, 3]
