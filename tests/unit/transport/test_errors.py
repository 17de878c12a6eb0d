"""Errors of the transport package."""

import pickle

import pytest

from transport import errors


def _leaves(cls):
    subclasses = cls.__subclasses__()
    return [cls, *(leaf for sub in subclasses for leaf in _leaves(sub))]


@pytest.mark.parametrize("cls", _leaves(errors.TransportError))
def test_every_error_survives_pickling(cls):
    """A worker or a test may send any of them to another process."""
    copy = pickle.loads(pickle.dumps(cls("what is wrong", "images[1]")))
    assert type(copy) is cls
    assert (copy.message, copy.param, str(copy)) == ("what is wrong", "images[1]", "what is wrong")


def test_api_error_keeps_all_of_the_problem_document():
    """Pickling loses neither status nor code nor the time to wait."""
    error = errors.ApiError("full", "", 429, "store_full", True, 1.5)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.status, copy.code, copy.retryable, copy.retry_after_s) == (
        429,
        "store_full",
        True,
        1.5,
    )
