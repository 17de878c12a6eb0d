"""The survey's result as Markdown; what docs/models.md is."""

from __future__ import annotations

from dataclasses import dataclass, field

from processors import hf
from processors.survey.parity import EXACT
from processors.types import Modality, ModelInfo

_INTRO = """\
# Models

Written by `python -m processors.survey` on transformers {release}. Of {total} processors {served}
load offline, and {exact} of those are exact in every modality they take: the ids equal those of
Hugging Face's joint call, and the features equal its call on the item alone, bit for bit.

*Built from*: `prepared` directories have the family's real vision geometry and special tokens;
`defaults` are whatever the classes give. *Fast*: modalities with an exact fast kernel. *Compact*:
those that can be sent as codes and a table.
"""
_HEADER = (
    "| model | processor | built from | image | video | audio | placeholders | features | "
    "positions | fast | compact |"
)


@dataclass
class Row:
    """What the survey found of one model."""

    name: str
    processor: str
    origin: str
    """`prepared`, `defaults`, or why the model could not be built or loaded."""
    info: ModelInfo | None = None
    parity: dict[Modality, str] = field(default_factory=dict)
    fast: tuple[str, ...] = ()
    compact: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether every modality that the processor takes is exact."""
        return bool(self.parity) and all(v.startswith(EXACT) for v in self.parity.values())


def render(rows: list[Row]) -> str:
    """Return the survey as Markdown."""
    served = [row for row in rows if row.parity]
    exact = sum(row.is_exact for row in served)
    intro = _INTRO.format(
        release=hf.versions()["transformers"], total=len(rows), served=len(served), exact=exact
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
        *(row.parity.get(m, "") for m in (Modality.IMAGE, Modality.VIDEO, Modality.AUDIO)),
        " ".join(placeholders),
        " ".join(f"`{name}`" for name in features),
        (info.positions if info else None) or "",
        " ".join(row.fast),
        " ".join(row.compact),
    ]
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
