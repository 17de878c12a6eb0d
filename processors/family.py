"""What a family file may say about a model family, beyond what its processor's protocol says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from processors.types import FieldLayout, Modality, PromptEdit

Features: TypeAlias = dict[str, Any]
"""What a sub-processor returned, by name: tensors and lists."""

Finish: TypeAlias = Callable[[Any, Modality, Features], Features]
"""Does to one item's features what the processor's own call does after its sub-processors."""

Run: TypeAlias = Callable[..., tuple[Mapping[str, Any], Sequence[str]]]
"""(processor, media, merged keyword arguments by group) -> (features, replacement texts), for items
of one modality together."""

Prefix: TypeAlias = Callable[[Any, Modality, Mapping[str, Any], int], str]
"""(processor, modality, merged keyword arguments by group, index of the item) -> text."""


@dataclass(frozen=True)
class FamilySpec:
    """A family's peculiarities; the defaults are those of a family that needs no file."""

    model_types: tuple[str, ...] = ()
    """transformers' `model_type`s that it stands for."""
    counters: frozenset[str] = frozenset()
    """Outputs of the sub-processors that only the processor itself uses."""
    layouts: Mapping[str, FieldLayout] = field(default_factory=dict)
    """How tensors join, where the load-time probe cannot see it."""
    row_tokens: Mapping[Modality, str] = field(default_factory=dict)
    """The token that stands for an encoder row, where it is not the config's."""
    patterns: Mapping[Modality, str] = field(default_factory=dict)
    """Regular expressions of other spellings of a placeholder."""
    framing: tuple[str, ...] = ()
    """Media-framing tokens whose names do not look like it."""
    finish: Finish | None = None
    runs: Mapping[Modality, Run] = field(default_factory=dict)
    """Takes the place of the protocol where the processor's own call passes more to it."""
    prefix: Prefix | None = None
    """What the processor's own call puts before an item's replacement, by the item's index."""
    edits: Callable[[Any], tuple[PromptEdit, ...]] | None = None
    """Returns what the processor's own call writes into a text prompt, from the processor."""
    cross_attention: bool = False
    """Whether the encoder's rows take no positions in the prompt."""
    allow_fast: bool = True
    """False where a fast kernel passes its proof on samples and is not exact for every size."""
    data_dependent: frozenset[Modality] = frozenset()
    """Modalities whose replacement depends on pixels or samples: a header's plan may be wrong."""
    tables: frozenset[str] = frozenset()
    """Tensors with a row of counts per item, of which the first is of feature rows."""
    row_numbers: Mapping[str, str] = field(default_factory=dict)
    """Tensors that number the rows of another one (of its first two dimensions together), which a
    joint call counts on over its items."""
    positions: str | None = None
    """Name of the position scheme in `processors.positions`."""
    position_config: Callable[[Any], dict[str, Any]] | None = None
    """Returns the scheme's arguments from the model's config."""


COUNTERS = frozenset({"rows", "cols", "num_tiles", "num_patches"})
"""Outputs that processors count tokens with and then drop in calls of their own."""
