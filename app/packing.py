"""The pack stage: from planned and executed items to an answer, its lease and its pins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.admission import Permit
from app.answer import Answer, AnswerItem
from app.call import Call, Expanded, Planned
from app.describe import in_prompt_order
from app.encodings import PLAIN
from app.execution import Outcome
from app.leasing import Leasing, Placed
from app.media import Holdings
from app.options import LEASED
from app.store import FeatureStore, Had, Stored

UNENCODED = "encoding_unavailable"
"""Code of the warning that an item is answered plain."""


class Packer:
    """Makes answers.

    Args:
        instance: This run of the service.
        store: Holds the features.
        leasing: Grants leases.
        holdings: Keeps media that were only planned.
    """

    def __init__(
        self, instance: str, store: FeatureStore, leasing: Leasing, holdings: Holdings
    ) -> None:
        self._instance = instance
        self._store = store
        self._leasing = leasing
        self._holdings = holdings

    def planned(self, call: Call, planned: Sequence[Planned], expanded: Expanded) -> Answer:
        """Answer a plan; media stay readable by hash for a while where their hash was asked for."""
        if call.request.plan_hash:
            for item in planned:
                digest, media = item.loaded.digest, item.loaded.media
                if item.hash is not None and digest is not None and media and not item.slices:
                    self._holdings.hold(item.hash, media, digest)
        return self._answer(call, planned, expanded, ["planned"] * len(planned), None)

    def executed(
        self,
        call: Call,
        planned: Sequence[Planned],
        expanded: Expanded,
        outcomes: Sequence[Outcome],
        permit: Permit,
        placed: Placed | None = None,
    ) -> Answer:
        """Answer with features; takes over their pins and the permit.

        Args:
            call: The request.
            planned: Its items.
            expanded: Its prompt.
            outcomes: What became of each item.
            permit: Released when the answer is out.
            placed: Where the features are on a device; unpinned by whoever placed them.
        """
        had = [o if isinstance(o, Had) else None for o in outcomes]
        reports = [h.report for h in had if h is not None and h.report is not None]
        for report in reports:
            call.timings.add("decode", report.decode_ms)
            call.timings.add("process", report.process_ms)
        statuses = [
            "known"
            if h is None
            else "passthrough"
            if item.slices is not None
            else "cached"
            if h.report is None
            else "computed"
            for item, h in zip(planned, had, strict=True)
        ]
        stored = [None if h is None else h.stored for h in had]
        answer = self._answer(call, planned, expanded, statuses, stored)
        answer.batches = [report.batch for report in reports]
        self._hold(call, answer, stored, permit.release, placed)
        return answer

    def begun(
        self,
        call: Call,
        planned: Sequence[Planned],
        expanded: Expanded,
        stored: Sequence[Stored | None],
        release: Callable[[], None],
    ) -> Answer:
        """Answer before the features are made (`wait: false`); takes over their pins."""
        statuses = [
            "known"
            if s is None
            else "pending"
            if self._store.is_pending(s.key)
            else "cached"
            if item.slices is None
            else "passthrough"
            for item, s in zip(planned, stored, strict=True)
        ]
        answer = self._answer(call, planned, expanded, statuses, stored)
        self._hold(call, answer, stored, release)
        return answer

    def _hold(
        self,
        call: Call,
        answer: Answer,
        stored: Sequence[Stored | None],
        release: Callable[[], None],
        placed: Placed | None = None,
    ) -> None:
        """Lease what the transport leases, and let go of pins when the answer is out."""
        revoke: Callable[[], None] | None = None

        def close(complete: bool) -> None:
            if revoke is not None and not complete:
                revoke()
            for each in stored:
                if each is not None:
                    self._store.arena.unpin(each.region)
            release()

        answer.on_close = close
        if call.choice.name in LEASED:
            try:
                revoke = self._leasing.grant(
                    call.request,
                    answer,
                    transport=call.choice.name,
                    owner=call.key_id,
                    base_url=call.base_url,
                    placed=placed,
                )
            except BaseException:
                close(complete=False)
                raise

    def _answer(
        self,
        call: Call,
        planned: Sequence[Planned],
        expanded: Expanded,
        statuses: Sequence[str],
        stored: Sequence[Stored | None] | None,
    ) -> Answer:
        placements = () if expanded.prompt is None else expanded.prompt.placements
        keys = [(p.loaded.item.modality, p.loaded.item.index) for p in planned]
        places = {(p.modality, p.index): p for p in placements}
        # What the lenient walk dropped has no place in a prompt and is not answered.
        dropped = expanded.prompt is not None and call.request.lenient
        items = [
            AnswerItem(
                modality=keys[n][0],
                index=keys[n][1],
                status=statuses[n],
                plan=planned[n].plan,
                placement=places.get(keys[n]),
                hash=planned[n].hash,
                digest=planned[n].loaded.digest,
                tensors=call.tensors_of(planned[n]),
                caller_hash=_caller_hash(planned[n]),
                stored=None if stored is None else stored[n],
            )
            for n in in_prompt_order(keys, placements)
            if keys[n] in places or not dropped or keys[n][0] not in call.model.info.placeholders
        ]
        warnings = [
            (code, item.loaded.item.param, text)
            for item in planned
            for code, text in item.plan.warnings
        ]
        warnings += _without_encoding(call, planned)
        warnings += [
            ("transport_passed_over", "transport", f"{name}: {reason}")
            for name, reason in call.choice.passed_over
        ]
        if expanded.prompt is not None:
            warnings += [(code, "", text) for code, text in expanded.prompt.warnings]
        return Answer(
            request_id=call.request_id,
            instance=self._instance,
            model=call.model,
            prompt=expanded.prompt,
            items=items,
            inline=call.choice.name == "safetensors",
            warnings=warnings,
            passed_over=call.choice.passed_over,
            positions=expanded.positions,
            wants_positions=call.request.positions,
            prompt_text=expanded.text,
            timings_ms=call.timings.finish(),
        )


def _without_encoding(call: Call, planned: Sequence[Planned]) -> list[tuple[str, str, str]]:
    """Return a warning for each item that is answered plain though codes were asked for."""
    if call.request.encoding == PLAIN:
        return []
    text = f"Answered plain: there is no {call.request.encoding} form of this item's features."
    return [
        (UNENCODED, item.loaded.item.param, text)
        for item in planned
        if call.encoding_of(item) == PLAIN
    ]


def _caller_hash(item: Planned) -> str | None:
    entry = item.loaded.item.preprocessed
    return None if entry is None else entry.hash
