"""The items of a request, waiting for their placeholders."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from processors.errors import PlaceholderMismatchError
from processors.types import ItemPlan, Modality

Group = tuple[Modality, ...]
"""Modalities that share one placeholder; nearly always one."""


@dataclass(frozen=True, slots=True)
class WaitingItem:
    """One item and its place within its modality."""

    index: int
    plan: ItemPlan
    sound: tuple[int, ItemPlan] | None = None
    """Of a video whose replacement holds the rows of its own sound: that item."""

    @property
    def placed(self) -> tuple[tuple[int, ItemPlan], ...]:
        """The items that this one's placeholder stands for: itself, then its sound."""
        own = (self.index, self.plan)
        return (own,) if self.sound is None else (own, self.sound)


class WaitingItems:
    """Items in the order in which placeholders take them.

    Args:
        plans: Of every item; those of one modality in placeholder order.
        groups: The group of each modality that has a placeholder.
        holds: Whether the first plan's replacement holds rows of the second one, a sound.
        param: The field that holds the prompt, for errors.
    """

    def __init__(
        self,
        plans: Sequence[ItemPlan],
        groups: Mapping[Modality, Group],
        holds: Callable[[ItemPlan, ItemPlan], bool],
        param: str,
    ) -> None:
        self._param = param
        self._queues: dict[Group, deque[WaitingItem]] = {g: deque() for g in groups.values()}
        self._given = dict.fromkeys(self._queues, 0)
        self._surplus = dict.fromkeys(self._queues, 0)
        counts = dict.fromkeys(Modality, 0)
        numbered: list[tuple[int, ItemPlan]] = []
        for plan in plans:
            numbered.append((counts[plan.modality], plan))
            counts[plan.modality] += 1
        sounds = deque(entry for entry in numbered if is_sound_of_video(entry[1]))
        for index, plan in numbered:
            if plan.modality not in groups or is_sound_of_video(plan):
                continue
            sound = sounds.popleft() if sounds and holds(plan, sounds[0][1]) else None
            self._add(groups[plan.modality], WaitingItem(index, plan, sound))
        for index, plan in sounds:
            self._add(groups[plan.modality], WaitingItem(index, plan))

    def upcoming(self) -> list[tuple[Group, WaitingItem]]:
        """Return the next item of every group that has one."""
        return [(group, queue[0]) for group, queue in self._queues.items() if queue]

    def take(self, group: Group) -> WaitingItem | None:
        """Return the next item for a placeholder; None (counted) where there is none left."""
        if self._queues[group]:
            return self._queues[group].popleft()
        self._surplus[group] += 1
        return None

    def check(self, *, lenient: bool) -> tuple[tuple[str, str], ...]:
        """Refuse surplus placeholders and items, or return warnings of them where lenient."""
        warnings = []
        for group, queue in self._queues.items():
            if not queue and not self._surplus[group]:
                continue
            given = self._given[group]
            error = mismatch(group, given - len(queue) + self._surplus[group], given, self._param)
            if not lenient:
                raise error
            warnings.append(("surplus_dropped", error.message))
        return tuple(warnings)

    def _add(self, group: Group, item: WaitingItem) -> None:
        self._queues[group].append(item)
        self._given[group] += 1


def is_sound_of_video(plan: ItemPlan) -> bool:
    """Return whether a plan is of the sound of a video, without a placeholder of its own."""
    return plan.modality is Modality.AUDIO and plan.replacement == () and plan.num_tokens > 0


def mismatch(group: Group, placeholders: int, items: int, param: str) -> PlaceholderMismatchError:
    """Return the error that says how many placeholders there are and how many items."""
    name = " or ".join(modality.value for modality in group)
    return PlaceholderMismatchError(
        f"The prompt holds {placeholders} {name} placeholder(s) and the request {items} {name}(s); "
        "they must be equal.",
        param,
    )
