"""What crosses process borders is made of nothing but our own classes and plain data."""

import pickle
import pickletools

import pytest

from processors.types import Modality


@pytest.mark.parametrize("modality", list(Modality))
def test_modalities_name_only_their_class(modality: Modality) -> None:
    """On every Python version a modality's pickle calls its class, not `getattr`."""
    data = pickle.dumps(modality, protocol=pickle.HIGHEST_PROTOCOL)
    assert pickle.loads(data) is modality
    words = {argument for _, argument, _ in pickletools.genops(data) if isinstance(argument, str)}
    assert "getattr" not in words
    assert "Modality" in words
