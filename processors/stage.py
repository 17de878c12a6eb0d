"""What planning and processing have in common for every modality."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import torch

from processors import hf
from processors.errors import (
    InvalidRequestError,
    MediaTooLargeError,
    PlanMismatchError,
    PromptTooLongError,
)
from processors.family import COUNTERS, FamilySpec, Features
from processors.features import Joins, describe_tensors
from processors.kwargs import check_bounds, check_sampling, override_sampling, split_defaults
from processors.replacement import code_runs, find_row_token
from processors.types import (
    DecodeLimits,
    ItemInput,
    ItemPlan,
    Modality,
    ModelSpec,
    ProcessReport,
    ReplacementPart,
    TensorSpec,
)

T = TypeVar("T")

MAX_REMEMBERED = 4096
"""Plans and merged keyword arguments remembered per modality."""


@dataclass(frozen=True)
class Outcome:
    """One item through the protocol, on real data or without."""

    tensors: dict[str, torch.Tensor]
    replacement: str | None
    features: Features
    """The sub-processor's own output, counters included."""


@dataclass(frozen=True)
class Shape:
    """The part of a plan that follows from size and keyword arguments alone."""

    replacement: tuple[ReplacementPart, ...] | None
    num_tokens: int
    row_token_id: int | None
    tensors: tuple[TensorSpec, ...]


class Memo(Generic[T]):
    """A bounded table of computed values, oldest use out first; threads may share it."""

    def __init__(self, size: int = MAX_REMEMBERED) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the value of a key, computing it at its first use."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = compute()
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._size:
                self._values.popitem(last=False)
        return value


@dataclass(frozen=True)
class MediaTokens:
    """The media tokens of a model: what may repeat, and what stands for an encoder row."""

    repeating: tuple[str, ...]
    rows: Mapping[Modality, tuple[str, ...]]
    """Candidates by modality, the likeliest first."""


@dataclass(frozen=True)
class StageContext:
    """What every stage of a model is made of."""

    model: hf.LoadedModel
    family: FamilySpec
    spec: ModelSpec
    limits: DecodeLimits
    tokens: MediaTokens


class Stage(ABC):
    """Plans and processes the items of one modality; a subclass knows its media."""

    modality: ClassVar[Modality]

    def __init__(self, context: StageContext) -> None:
        self.context = context
        self.model = context.model
        self.limits = context.limits
        self.part = context.model.sub_processors[self.modality]
        self.defaults = hf.default_values(self.part)
        self.server_kwargs = split_defaults(context.spec.default_kwargs, self.modality)
        check_sampling(self.server_kwargs)
        self._merged: Memo[dict[str, Any]] = Memo()
        self._shapes: Memo[Shape] = Memo()
        self.joins = Joins()
        self.feature_names: tuple[str, ...] = ()

    @abstractmethod
    def plan(self, item: ItemInput) -> ItemPlan:
        """See `Engine.plan`."""

    @abstractmethod
    def process(
        self, item: ItemInput, plan: ItemPlan, outputs: Mapping[str, torch.Tensor]
    ) -> ProcessReport:
        """See `Engine.process`."""

    @abstractmethod
    def warm_up(self) -> None:
        """Process one small item."""

    def effective(self, item: ItemInput) -> dict[str, Any]:
        """Return the item's keyword arguments over the server's, bounded.

        Raises:
            InvalidRequestError, MediaTooLargeError: See `processors.kwargs.check_bounds`.
        """
        kwargs = override_sampling(self.server_kwargs, item.kwargs)
        check_bounds(kwargs, self.defaults, self.limits)
        return kwargs

    def merged(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return keyword arguments merged over the processor's own; remembered.

        Raises:
            InvalidRequestError: If the processor refuses a value.
        """
        key = json.dumps(kwargs, sort_keys=True)
        return dict(self._merged.get(key, lambda: self._merge(kwargs)))

    def shape_of(self, key: Hashable, run: Callable[[], tuple[Outcome, bool]]) -> Shape:
        """Return the planned shape of a key from a run without data; remembered.

        Args:
            key: Everything the shape depends on.
            run: Returns the outcome and whether it was on meta tensors.

        Raises:
            MediaTooLargeError, PromptTooLongError: If the item would exceed a limit.
        """
        return self._shapes.get(key, lambda: self._describe(*run()))

    def finish(self, features: Features, replacements: list[str]) -> Outcome:
        """Turn what a sub-processor gave for an item into tensors, as the processor's call does."""
        processor, family = self.model.processor, self.context.family
        if family.finish is not None:
            features = family.finish(processor, self.modality, features)
        dropped = COUNTERS | family.counters | set(processor.unused_input_names)
        kept = {name: value for name, value in features.items() if name not in dropped}
        tensors = hf.to_tensors(kept)
        return Outcome(tensors, replacements[0] if replacements else None, features)

    def item_plan(
        self, item: ItemInput, shape: Shape, base: ItemPlan, kwargs: Mapping[str, Any]
    ) -> ItemPlan:
        """Return `base` with a shape put in, and the family's prefix for the item's index."""
        replacement = shape.replacement
        if self.context.family.prefix is not None and replacement is not None:
            prefix = self.context.family.prefix(
                self.model.processor, self.modality, self.merged(kwargs), item.index
            )
            parts = (ReplacementPart(prefix),) if prefix else ()
            replacement = (*parts, *replacement)
        return replace(
            base,
            replacement=replacement,
            num_tokens=shape.num_tokens,
            row_token_id=shape.row_token_id,
            tensors=shape.tensors,
        )

    def refuse(self, kwargs: Mapping[str, Any], what: str) -> InvalidRequestError:
        """Return the error for an item that the processor does not take."""
        why = " with these mm_processor_kwargs" if kwargs else ""
        return InvalidRequestError(f"The model's processor does not take {what}{why}.")

    def _merge(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return hf.merge_kwargs(self.model.processor, self.modality, kwargs)
        except hf.HF_ERRORS as exc:
            message = "The model's processor refuses a value of mm_processor_kwargs."
            raise InvalidRequestError(message) from exc

    def _describe(self, outcome: Outcome, on_meta: bool) -> Shape:
        specs = describe_tensors(
            outcome.tensors,
            self.joins,
            pixels=self.modality is not Modality.AUDIO,
            on_meta=on_meta,
        )
        self._check_size(specs)
        if outcome.replacement is None:
            return Shape(None, 0, None, specs)
        tokens = self.context.tokens
        parts = code_runs(outcome.replacement, tokens.repeating)
        if self.context.family.cross_attention:
            return Shape(parts, 0, None, specs)
        row, num_tokens = find_row_token(parts, tokens.rows[self.modality])
        if row is None:
            raise PlanMismatchError("The processor's replacement text holds no row token.")
        if num_tokens > self.limits.max_item_tokens:
            raise PromptTooLongError(
                f"The item becomes {num_tokens} tokens; at most {self.limits.max_item_tokens} are "
                "taken."
            )
        return Shape(parts, num_tokens, self.model.token_id(row), specs)

    def _check_size(self, specs: tuple[TensorSpec, ...]) -> None:
        nbytes = sum(spec.nbytes for spec in specs)
        if nbytes > self.limits.max_feature_bytes:
            raise MediaTooLargeError(
                f"The item's features take {nbytes} bytes; at most "
                f"{self.limits.max_feature_bytes} are taken."
            )
