"""Write docs/benchmarks.md and its plots from the results: `python -m bench.report`."""

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.goals import GOALS
from bench.plots import draw_all
from bench.results import verdict_of
from bench.run import RESULTS

PAGE = Path("docs/benchmarks.md")
PLOTS = "benchmarks"
PEERS = Path(__file__).parent / "peers.json"
Document = Mapping[str, Any]
INTRODUCTION = Path(__file__).parent / "introduction.md"


def load(folder: Path) -> dict[str, Document]:
    """Return the results that are there, by goal."""
    return {
        name: json.loads(path.read_text())
        for name in GOALS
        if (path := folder / f"{name}.json").exists()
    }


def render(documents: Mapping[str, Document], plots: Mapping[str, str]) -> str:
    """Return the page.

    Args:
        documents: Results by goal.
        plots: Titles by file name, of the plots that were drawn.
    """
    sections = [INTRODUCTION.read_text(), _machine(documents), _summary(documents)]
    for name, title in plots.items():
        sections.append(f"## {title}\n\n![{title}]({PLOTS}/{name}.svg)\n")
    sections += [_families(documents), _peers()]
    return "\n".join(section for section in sections if section)


def _machine(documents: Mapping[str, Document]) -> str:
    lines = ["## The machine\n"]
    runs: dict[str, list[str]] = {}
    for name, document in documents.items():
        runs.setdefault(document["facts"]["started"], []).append(name)
    for started, names in runs.items():
        facts = documents[names[0]]["facts"]
        versions = ", ".join(f"{k} {v}" for k, v in facts["versions"].items())
        memory = f"{facts['memory_bytes'] / 2**30:.0f} GiB"
        dirty = " with changes" if facts["is_dirty"] else ""
        quick = " **A quick run: its values mean little.**" if facts["is_quick"] else ""
        lines.append(
            f"- {', '.join(names)}: {started}, commit `{facts['commit'][:12]}`{dirty}, "
            f"{facts['cpu']}, {facts['cores']} cores, {memory}, Python {facts['python']}, "
            f"{versions}.{quick}"
        )
    if len(runs) > 1:
        lines.append("\nThe goals above were measured in several runs; ratios hold within each.")
    return "\n".join(lines) + "\n"


def _summary(documents: Mapping[str, Document]) -> str:
    parts = ["## Goals\n"]
    counts: dict[str, int] = {}
    for name, document in documents.items():
        parts.append(f"### {name}: {document['title']}\n")
        parts.append("| measured | value | goal | verdict | sides |\n|---|---|---|---|---|")
        for row in document["rows"]:
            verdict = verdict_of(row)
            counts[verdict] = counts.get(verdict, 0) + 1
            parts.append(_table_row(_row(row, verdict)))
        parts += [
            _table_row((gap["what"], "not measured", "", "", gap["why"]))
            for gap in document["missing"]
        ]
        parts.append("")
    told = [f"{counts[v]} {v}" for v in ("met", "within 10 %", "not met") if v in counts]
    parts.insert(1, f"Of the rows with a goal: {', '.join(told)}.\n")
    return "\n".join(parts)


def _row(row: Mapping[str, Any], verdict: str) -> tuple[str, ...]:
    value, target = row["value"], row["target"]
    shown = _number(value["median"])
    if value["low"] != value["high"]:
        shown += f" ({_number(value['low'])} to {_number(value['high'])})"
    goal = ""
    if target is not None:
        goal = f"{'≥' if target['is_least'] else '≤'} {target['bound']:g}"
    sides = [f"{side} {text}" for side, text in row["sides"].items()]
    told = "; ".join([*sides, row["note"]] if row["note"] else sides)
    verdict = "" if verdict == "no goal" else f"**{verdict}**" if verdict == "not met" else verdict
    return row["what"], f"{shown} {row['unit']}", goal, verdict, told


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _table_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _families(documents: Mapping[str, Document]) -> str:
    ratios = documents.get("G1", {"series": {}})["series"].get("families.ratios")
    if not ratios:
        return ""
    sizes = list(ratios)
    lines = [
        "## Every family\n",
        "How many times faster than the plain call, one client, over HTTP; below 1 is slower.\n",
        _table_row(["family", *sizes]),
        _table_row(["---"] * (len(sizes) + 1)),
        *(
            _table_row([name, *(f"{ratios[size][name]:.2f}" for size in sizes)])
            for name in sorted(ratios[sizes[0]])
        ),
    ]
    return "\n".join(lines) + "\n"


def _peers() -> str:
    peers = json.loads(PEERS.read_text())
    lines = [
        "## Peers, not from this run\n",
        f"For orientation only: {peers['origin']}.\n",
        _table_row(["what", "then"]),
        _table_row(["---"] * 2),
        *(_table_row([row["what"], row["value"]]) for row in peers["rows"]),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    documents = load(options.results)
    if not documents:
        parser.error(f"there are no results in {options.results}; run `python -m bench.run` first")
    series = {name: document["series"] for name, document in documents.items()}
    titles = draw_all(series, options.page.parent / PLOTS)
    options.page.write_text(render(documents, titles))
    print(f"wrote {options.page}")


if __name__ == "__main__":
    main()
