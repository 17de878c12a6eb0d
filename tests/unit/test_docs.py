"""The documentation names everything there is, and says of it what the code says."""

import dataclasses
import importlib
import json
import pkgutil
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from fastapi import APIRouter
from pydantic import BaseModel

import app.routes
from app.config import Settings, known_env_names, load_settings
from app.errors import CODES, problem
from app.schemas import PreprocessRequest
from processors.errors import MediaDecodeError
from processors.family import FamilySpec
from tests.helpers.metric_names import defined_metrics
from tests.helpers.model_zoo import available_families

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _rows(page: str) -> dict[str, list[str]]:
    """Table rows by the code in their first cell."""
    rows = {}
    for line in (DOCS / page).read_text().splitlines():
        cells = [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and (found := re.fullmatch(r"`([^`]+)`", cells[0])):
            rows[found[1]] = cells
    return rows


def _sections() -> set[str]:
    return {
        f"MMPREP_{name}".upper()
        for name, info in Settings.model_fields.items()
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
    }


def test_every_setting_is_documented() -> None:
    """The tables of configuration.md hold exactly the settings there are, with a meaning each."""
    rows = {n: c for n, c in _rows("configuration.md").items() if "_CLIENT_" not in n}
    assert set(rows) == known_env_names() - _sections()
    assert [n for n, cells in rows.items() if len(cells) != 3 or not cells[2]] == []


def test_documented_defaults_are_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting every variable to its documented default changes nothing."""
    defaults = load_settings({})
    given = {}
    for name, cells in _rows("configuration.md").items():
        if (found := re.match(r"`([^`]*)`", cells[1])) and "_CLIENT_" not in name:
            given[name] = found[1]
            monkeypatch.setenv(name, found[1])
    assert len(given) > 40
    assert load_settings(given) == defaults


def test_variables_in_prose_exist() -> None:
    """Wherever a page names a setting, there is one of that name."""
    known = known_env_names() | {"MMPREP_CLIENT_BASE_URL", "MMPREP_CLIENT_API_KEY"}
    for page in PAGES:
        # Names that end in * stand for a group; build arguments of the image are not settings.
        names = re.findall(r"\bMMPREP_[A-Z_]+\b(?!\*|_\*)", page.read_text())
        unknown = {n for n in names if n not in known and not n.endswith(("_", "__"))}
        assert unknown <= {"MMPREP_VARIANT", "MMPREP_SERVICE", "MMPREP_PORT"}, page.name


def test_every_error_is_documented() -> None:
    """errors.md has a row for each code, with its status and whether a retry may help."""
    rows = {n: c for n, c in _rows("errors.md").items() if len(c) == 5}
    assert set(rows) == set(CODES)
    for code, info in CODES.items():
        assert rows[code][1] == str(info.status), code
        said = {"yes": True, "no": False, "it depends": info.retryable}[rows[code][2]]
        assert said == info.retryable, code


def test_example_problem_is_one() -> None:
    """The problem document shown is what the code makes of that error."""
    (text,) = [body for kind, body in FENCE.findall((DOCS / "errors.md").read_text()) if kind]
    example = json.loads(text)
    error = MediaDecodeError(example["detail"], example["param"])
    assert example == problem(error, example["request_id"])


def test_every_metric_is_documented() -> None:
    """operations.md has a row for each metric and for no other."""
    rows = {n.partition("{")[0] for n in _rows("operations.md") if n.startswith("mmprep_")}
    assert rows == set(defined_metrics())


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links point at files that exist."""
    for target in LINK.findall(page.read_text()):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_code_blocks_parse(page: Path) -> None:
    """Python blocks compile and JSON blocks without ellipses parse."""
    for kind, body in FENCE.findall(page.read_text()):
        if kind == "python":
            compile(body, page.name, "exec")
        elif kind == "json" and "…" not in body:
            json.loads(body)


def test_every_request_field_is_documented() -> None:
    """wire-format.md names each field of a request, and the table of fields no other."""
    text = (DOCS / "wire-format.md").read_text()
    table = text[text.index("| field |") : text.index("At most one of `prompt`")]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("|")]
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    # `format` has one value so far.
    assert named == set(PreprocessRequest.model_fields) - {"format"}


def test_every_family_field_is_documented() -> None:
    """adding-a-model.md has a row for each field of a family's file."""
    rows = set(_rows("adding-a-model.md"))
    assert rows == {field.name for field in dataclasses.fields(FamilySpec)}


def test_every_family_has_its_row() -> None:
    """models.md is of the installed transformers, has each prepared family, and 45 are exact."""
    text = (DOCS / "models.md").read_text()
    assert f"on transformers {version('transformers')}." in text
    served, refused = (
        [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in part.splitlines()]
        for part in text.split("## Not served")
    )
    prepared = {cells[0]: cells[3:6] for cells in served if cells[2:3] == ["prepared"]}
    assert set(available_families()) <= prepared.keys() | {c[0] for c in refused if c}
    verdicts = [[v for v in modalities if v] for modalities in prepared.values()]
    assert sum(all(v.startswith("exact") for v in told) for told in verdicts if told) >= 45


def test_every_dependency_is_documented() -> None:
    """dependencies.md has a row for each package of the base install and the server."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["server"]]
    names = {re.split(r"[<>=]", entry)[0] for entry in needed}
    rows = {n for n in _rows("dependencies.md") if not n.startswith("mmprep")}
    assert rows == names


def test_every_endpoint_is_in_the_readme() -> None:
    """The README's table holds the paths that the application serves."""
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"`(?:GET|POST|DELETE) (/[\w/{}]+)`", text))
    served = {
        route.path.replace("{lease_id}", "{id}").replace("{item_hash}", "{hash}")
        for module in pkgutil.iter_modules(app.routes.__path__, "app.routes.")
        for router in vars(importlib.import_module(module.name)).values()
        if isinstance(router, APIRouter)
        for route in router.routes
    }
    assert named == served


def test_every_target_is_documented() -> None:
    """CONTRIBUTING.md names make targets that exist."""
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make (\w+)`", (ROOT / "CONTRIBUTING.md").read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_layout_table_is_true() -> None:
    """The files that AGENTS.md describes are there."""
    rows = [line for line in (ROOT / "AGENTS.md").read_text().splitlines() if line[:3] == "| `"]
    assert rows
    for row in rows:
        names = re.findall(r"`([\w/.]+)`", row.split("|")[1])
        folder = (ROOT / names[0]).parent
        for name in names:
            assert (ROOT / name).exists() or (folder / name).exists(), name
