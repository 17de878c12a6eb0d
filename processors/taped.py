"""Items of one likeness go through a processor's control flow once, and then by a tape."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

import torch

from processors.context import Outcome
from processors.fast import Call, Kernel, Recording, Tape
from processors.memo import Memo
from processors.types import ItemPlan, ReplacementPart, TensorSpec

MAX_TAPES = 1024
"""Tapes remembered of one stage."""

RunFast = Callable[[Call, torch.Tensor], Outcome]
"""Runs an item's pixels through the protocol with a call's sub-processor."""


@dataclass(frozen=True)
class _Known:
    """What is known of a likeness: how its first item was planned, and what was done to it."""

    replacement: tuple[ReplacementPart, ...] | None
    tensors: tuple[TensorSpec, ...]
    tape: Tape | None
    """None where the call cannot be repeated."""


class Tapes:
    """The tapes of one stage; threads may share it."""

    def __init__(self) -> None:
        self._known: Memo[Hashable, _Known] = Memo(MAX_TAPES)

    def run(
        self,
        likeness: Hashable,
        plan: ItemPlan,
        call: Call,
        media: torch.Tensor,
        run: RunFast,
        check: Callable[[Outcome], None],
    ) -> Mapping[str, torch.Tensor]:
        """Return an item's features, by the tape of its likeness or by `run`.

        Args:
            likeness: Everything besides the values of its pixels that an item's features and plan
                depend on.
            plan: The item's plan; what was checked against it stays checked for plans like it.
            call: The call under way.
            media: The item's pixels.
            run: Runs an item of which no tape is known.
            check: Checks what comes of it against the plan.
        """
        known = self._known.find(likeness)
        is_alike = known is not None and (known.replacement, known.tensors) == (
            plan.replacement,
            plan.tensors,
        )
        if known is None or not is_alike:
            outcome, tape = _record(call, media, run)
            check(outcome)
            self._known.keep(likeness, _Known(plan.replacement, plan.tensors, tape))
            return outcome.tensors
        if known.tape is not None:
            return known.tape.play(call, media)
        outcome = run(call, media)
        check(outcome)
        return outcome.tensors


def _record(call: Call, media: torch.Tensor, run: RunFast) -> tuple[Outcome, Tape | None]:
    """Run an item; return what comes of it, and how it was made if that can be repeated."""
    with Recording(call, media) as recording:
        outcome = run(call, media)
    return outcome, recording.tape(outcome.tensors)


def repeats_exactly(
    kernel: Kernel, media: torch.Tensor, run: RunFast, plain: Callable[[torch.Tensor], Outcome]
) -> bool:
    """Return whether a tape of one item gives for another what the plain processor gives.

    Args:
        kernel: The fast path.
        media: Pixels of noise (3, H, W), in the memory order of a decoder.
        run: Runs pixels by the fast path.
        plain: Runs pixels by the plain processor.
    """
    other = torch.empty_like(media).copy_(media.flip(-2))
    expected = plain(other).tensors
    outputs = {name: torch.zeros_like(value).contiguous() for name, value in expected.items()}
    _, tape = _record(kernel.start(outputs), media, run)
    if tape is None:
        return False
    call = kernel.start(outputs)
    call.write(tape.play(call, other))
    return all(torch.equal(outputs[name], value) for name, value in expected.items())
