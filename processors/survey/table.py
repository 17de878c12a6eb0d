"""The survey's result as Markdown; what docs/models.md is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from processors import hf
from processors.survey.parity import EXACT
from processors.types import Modality, ModelInfo, StageTraits

_INTRO = """\
# Models

Written by `make models` on transformers {release}. Of {total} processors {served} load offline,
and {exact} of those are exact in every modality they take, {prepared} of them from prepared
directories.

*Built from*: `prepared` directories have the family's real vision geometry and special tokens;
`defaults` are whatever the classes give. *Parity*, per modality: `exact` where the ids equal those
of Hugging Face's joint call, and the features equal its call on the item alone, bit for bit; else
why not. *Plan*: what a plan is made on, with no pixel decoded: tensors without data (`meta`), or
`zeros` where the processor needs values; a `function` where the family has one of its own.
*Kernel*: whether an exact fast kernel stands in for the plain processor. *Compact*: whether
features can be sent as codes and a table.
"""
_HEADER = (
    "| model | processor | built from | parity: image | parity: video | parity: audio | "
    "placeholders | features | positions | plan | kernel | compact |"
)
_ORDER = (Modality.IMAGE, Modality.VIDEO, Modality.AUDIO)


@dataclass
class Row:
    """What the survey found of one model."""

    name: str
    processor: str
    origin: str
    """`prepared`, `defaults`, or why the model could not be built or loaded."""
    info: ModelInfo | None = None
    parity: dict[Modality, str] = field(default_factory=dict)
    traits: Mapping[Modality, StageTraits] = field(default_factory=dict)

    @property
    def is_exact(self) -> bool:
        """Whether every modality that the processor takes is exact."""
        return bool(self.parity) and all(v.startswith(EXACT) for v in self.parity.values())


def render(rows: list[Row]) -> str:
    """Return the survey as Markdown."""
    served = [row for row in rows if row.parity]
    exact = [row for row in served if row.is_exact]
    intro = _INTRO.format(
        release=hf.versions()["transformers"],
        total=len(rows),
        served=len(served),
        exact=len(exact),
        prepared=sum(row.origin == "prepared" for row in exact),
    )
    lines = [intro, _HEADER, "|" + "---|" * _HEADER.count(" | ") + "---|"]
    lines += [_line(row) for row in served]
    failed = [row for row in rows if not row.parity]
    lines += ["", "## Not served", "", "| model | processor | why |", "|---|---|---|"]
    lines += [f"| {row.name} | {row.processor} | {_cell(row.origin)} |" for row in failed]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    info = row.info
    placeholders = [f"`{p.text}`" for p in info.placeholders.values()] if info else []
    features = (
        dict.fromkeys(name for names in info.features.values() for name in names) if info else {}
    )
    cells = [
        row.name,
        row.processor,
        row.origin,
        *(row.parity.get(m, "") for m in _ORDER),
        " ".join(placeholders),
        " ".join(f"`{name}`" for name in features),
        (info.positions if info else None) or "",
        _per_modality(row, lambda traits: traits.plans_by),
        _per_modality(row, lambda traits: "yes" if traits.has_kernel else "no"),
        _per_modality(row, lambda traits: "yes" if traits.has_compact else "no"),
    ]
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _per_modality(row: Row, tell: Callable[[StageTraits], str]) -> str:
    """Return what is told of every modality, once where it is the same of all."""
    told = {m: tell(row.traits[m]) for m in _ORDER if m in row.traits}
    if len(set(told.values())) == 1:
        return next(iter(told.values()))
    return ", ".join(f"{modality.value} {text}" for modality, text in told.items())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
