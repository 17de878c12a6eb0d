"""One request on its way: what was asked for, resolved, and what its stages hand on."""

from __future__ import annotations

from dataclasses import dataclass

from app.catalog import ServedModel
from app.encodings import PLAIN, encode
from app.items import Collected
from app.jobs import JobItem
from app.media import LoadedItem
from app.options import Choice
from app.schemas import PreprocessRequest
from app.timing import Timings
from processors.positions import Positions
from processors.prompt import ExpandedPrompt
from processors.types import ItemPlan, TensorSlice, TensorSpec


@dataclass(frozen=True, slots=True)
class Call:
    """One request under way."""

    request: PreprocessRequest
    """Without its media and messages, which `collected` holds."""
    request_id: str
    model: ServedModel
    collected: Collected
    choice: Choice
    dtype: str
    deadline: float
    """On the event loop's clock."""
    timings: Timings
    key_id: str = ""
    """Who asks, for quotas; never the key itself."""
    base_url: str = ""
    """Where this server is reached, without a slash at the end."""

    def encoding_of(self, item: Planned) -> str:
        """Return how an item is encoded: as asked for, or plain where its pixels cannot be."""
        if any(tensor.compact is not None for tensor in item.plan.tensors):
            return self.request.encoding
        return PLAIN

    def tensors_of(self, item: Planned) -> tuple[TensorSpec, ...]:
        """Return an item's tensors as they are asked for."""
        return encode(item.plan.tensors, self.encoding_of(item), self.dtype)

    @property
    def salt(self) -> str:
        """The cache salt, empty where none was given."""
        return self.request.cache_salt or ""


@dataclass(slots=True)
class Planned:
    """An item with its plan."""

    loaded: LoadedItem
    plan: ItemPlan
    hash: str | None
    job: JobItem
    slices: tuple[TensorSlice, ...] | None = None
    """Of a preprocessed item: where its tensors stand in the caller's document."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """The prompt as the engine takes it; all None for models without text."""

    prompt: ExpandedPrompt | None = None
    positions: Positions | None = None
    text: str | None = None
    """The unexpanded prompt, where it was asked for."""
