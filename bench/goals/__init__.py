"""The goals: each a title, and the modules that measure it, in the order of a run.

A module has `measure(stand) -> Found`. Those in `ALONE` bring services of their own and run when
the shared sides are closed.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    title: str
    modules: tuple[str, ...]
    is_alone: bool = False


GOALS = {
    "G1": Goal("One client, cold, beside the plain Hugging Face call", ("latency", "families")),
    "G2": Goal("Many clients, cold, beside a pool of Hugging Face processes", ("throughput",)),
    "G3": Goal("An item seen before", ("repeat",)),
    "G4": Goal("Plans without features", ("plans",)),
    "G5": Goal("A stored feature handed over", ("handover",)),
    "G6": Goal("The compact encoding", ("compact",)),
    "G7": Goal("Long prompts", ("prompt",)),
    "G8": Goal("The event loop under load", ("responsive",), is_alone=True),
    "G9": Goal("Memory", ("memory",), is_alone=True),
    "G10": Goal("Video", ("video",)),
    "G11": Goal("Short sounds", ("audio",)),
    "G12": Goal("Growth, and bytes copied", ("growth", "copies")),
}
