"""The table of codes covers every error class, and problems have one shape."""

import pickle

import pytest

import app.errors
from app.errors import CODES, INTERNAL_WORDS, problem
from processors.errors import InvalidRequestError, MmprepError


def leaves(base: type[MmprepError]) -> list[type[MmprepError]]:
    return [c for sub in base.__subclasses__() for c in (sub, *leaves(sub))]


@pytest.mark.parametrize("error", leaves(MmprepError), ids=lambda e: e.__name__)
def test_every_error_is_mapped_and_survives_pickling(error: type[MmprepError]) -> None:
    """A code without a status would be a 500 by accident; an unpicklable error kills a worker."""
    assert error.code in CODES
    twin = pickle.loads(pickle.dumps(error("text", "images[0]")))
    assert (type(twin), twin.message, twin.param) == (error, "text", "images[0]")


def test_the_first_error_answers_and_all_are_listed() -> None:
    """Items share one fate; the document lists each."""
    first, second = InvalidRequestError("a", "images[0]"), InvalidRequestError("b", "images[1]")
    document = problem(first, "r", [first, second])
    assert document["param"] == "images[0]"
    assert [e["param"] for e in document["errors"]] == ["images[0]", "images[1]"]
    assert document["error"]["code"] == "invalid_request"


def test_internal_errors_keep_their_words_to_the_log() -> None:
    """What went wrong inside is never told outside."""
    assert problem(MmprepError("secret path /x"), "r")["detail"] == INTERNAL_WORDS


def test_documented_order_of_status() -> None:
    """The table reads by status, as the contract's does."""
    statuses = [c.status for c in CODES.values()]
    assert statuses == sorted(statuses)
    assert app.errors.PROBLEM_TYPE == "application/problem+json"
