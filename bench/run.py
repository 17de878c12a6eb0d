"""Measure goals: `python -m bench.run [G1 G3 ...] [--quick] [--out FOLDER]`.

Every goal compares sides that take turns in this run, see docs/benchmarks.md. Writes a JSON
document for each goal, with what is needed to compare runs. `--quick` uses few requests and the
smallest size, to see that the benchmarks work; its numbers mean little and go to `build/bench`.
"""

import argparse
import json
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.facts import machine_facts
from bench.goals import GOALS, Goal
from bench.results import Found, verdict_of
from bench.stand import Stand

RESULTS = Path(__file__).parent / "results"
QUICK_RESULTS = Path("build/bench")


def measure(goal: Goal, stand: Stand) -> dict[str, Any]:
    """Run a goal's modules and join what they found."""
    whole = Found()
    for name in goal.modules:
        found = import_module(f"bench.goals.{name}").measure(stand)
        whole.rows += found.rows
        whole.series |= {f"{name}.{key}": value for key, value in found.series.items()}
        whole.missing += found.missing
    return whole.to_json()


def show(name: str, document: dict[str, Any]) -> None:
    print(f"\n{name} {document['title']} ({document['seconds']:.0f} s)")
    for row in document["rows"]:
        value, target = row["value"], row["target"]
        goal = "" if target is None else f"{'>=' if target['is_least'] else '<='} {target['bound']}"
        sides = ", ".join(f"{side} {text}" for side, text in row["sides"].items())
        print(
            f"  {row['what']:58s} {value['median']:8.2f} ({value['low']:.2f} to "
            f"{value['high']:.2f}) {row['unit']} {goal}: {verdict_of(row)}  {sides}"
        )
    for gap in document["missing"]:
        print(f"  {gap['what']}: not measured, {gap['why']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("goals", nargs="*", help=f"of {', '.join(GOALS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="few requests, the smallest size")
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args()
    unknown = set(options.goals) - set(GOALS)
    if unknown:
        parser.error(f"there is no goal {', '.join(sorted(unknown))}")
    out = options.out or (QUICK_RESULTS if options.quick else RESULTS)
    out.mkdir(parents=True, exist_ok=True)
    about = {**machine_facts(), "is_quick": options.quick}
    chosen = [name for name in GOALS if not options.goals or name in options.goals]
    # The shared sides are closed before goals that must be alone.
    chosen.sort(key=lambda name: GOALS[name].is_alone)
    with tempfile.TemporaryDirectory() as folder, Stand(Path(folder), options.quick) as stand:
        for name in chosen:
            goal = GOALS[name]
            if goal.is_alone:
                stand.close()
            start = time.perf_counter()
            document = {"goal": name, "title": goal.title, "facts": about, **measure(goal, stand)}
            document["seconds"] = time.perf_counter() - start
            text = json.dumps(document, default=float)
            (out / f"{name}.json").write_text(text + "\n")
            show(name, document)
    print(f"\nwrote {out}")


if __name__ == "__main__":
    main()
