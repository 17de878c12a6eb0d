"""The bounded table of computed values."""

from processors.memo import Memo


def test_values_are_computed_once_and_the_oldest_use_goes():
    """A use keeps a value; the one not used longest makes room."""
    computed: list[str] = []

    def get(key: str) -> str:
        return memo.get(key, lambda: computed.append(key) or key.upper())

    memo: Memo[str] = Memo(2)
    assert [get("a"), get("b"), get("a"), get("c"), get("a"), get("b")] == list("ABACAB")
    assert computed == ["a", "b", "c", "b"]
