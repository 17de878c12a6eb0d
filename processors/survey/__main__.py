"""`python -m processors.survey [DIRECTORY ...] [--only TYPE ...] [--out FILE]`.

Each DIRECTORY holds prepared model directories; every other processor of the installed
transformers is built from its class's defaults. The table goes to FILE, or to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from processors import hf
from processors.engine import Engine
from processors.errors import MmprepError
from processors.survey.defaults import build_from_defaults, processor_names
from processors.survey.parity import LIMITS, Subject
from processors.survey.table import Row, render
from processors.types import Modality, ModelSpec

_BUILD_ERRORS = (*hf.HF_ERRORS, OSError, AssertionError)


def survey(name: str, directory: Path, origin: str) -> Row:
    """Load one model directory and compare every modality that its processor takes."""
    try:
        spec = ModelSpec(name, str(directory))
        model = hf.load(spec)
        row = Row(name, type(model.processor).__name__, origin)
        engine = Engine(spec, LIMITS)
    except (MmprepError, *_BUILD_ERRORS) as exc:
        return Row(name, _class_name(directory), f"not loaded: {_first_line(exc)}")
    row.info = engine.info
    subject = Subject(engine, model)
    row.traits = engine.traits
    for modality in model.sub_processors:
        if modality in row.traits:
            row.parity[modality] = _verdict(subject, modality)
        else:
            row.parity[modality] = "not served"
    return row


def _verdict(subject: Subject, modality: Modality) -> str:
    try:
        return subject.verdict(modality)
    except _BUILD_ERRORS as exc:
        return f"failed: {_first_line(exc)}"


def _first_line(exc: BaseException) -> str:
    text = str(exc).strip().split("\n")[0][:120]
    return f"{type(exc).__name__}: {text}" if not isinstance(exc, MmprepError) else text


def _class_name(directory: Path) -> str:
    path = directory / "processor_config.json"
    return json.loads(path.read_text()).get("processor_class", "") if path.exists() else ""


def survey_all(prepared: list[Path], only: list[str]) -> Iterator[Row]:
    """Survey every prepared directory, then every other processor from its defaults."""
    covered: set[str] = set()
    for folder in prepared:
        for directory in sorted(path for path in folder.iterdir() if path.is_dir()):
            covered.add(_model_type(directory))
            if not only or directory.name in only:
                yield survey(directory.name, directory, "prepared")
    for model_type, processor in sorted(processor_names().items()):
        if model_type in covered or (only and model_type not in only):
            continue
        with tempfile.TemporaryDirectory() as folder_name:
            directory = Path(folder_name) / "model"
            try:
                build_from_defaults(model_type, directory)
            except _BUILD_ERRORS as exc:
                yield Row(model_type, processor, f"not built: {_first_line(exc)}")
                continue
            yield survey(model_type, directory, "defaults")


def _model_type(directory: Path) -> str:
    return str(json.loads((directory / "config.json").read_text()).get("model_type", ""))


def main(arguments: list[str] | None = None) -> int:
    """Run the survey; return 1 when a model that loads is not exact, else 0."""
    parser = argparse.ArgumentParser(prog="python -m processors.survey", description=__doc__)
    parser.add_argument("directories", nargs="*", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = []
    for row in survey_all(options.directories, options.only):
        verdicts: Mapping[Modality, str] = row.parity
        told = ", ".join(f"{m.value} {v}" for m, v in verdicts.items()) or row.origin
        sys.stderr.write(f"{row.name}: {told}\n")
        rows.append(row)
    text = render(rows)
    if options.out is None:
        sys.stdout.write(text)
    else:
        options.out.write_text(text)
    return 0 if all(row.is_exact for row in rows if row.parity) else 1


if __name__ == "__main__":
    sys.exit(main())
