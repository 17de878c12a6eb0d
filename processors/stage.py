"""What planning and processing have in common for every modality."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from processors import hf
from processors.batching import MicroBatcher
from processors.context import Maker, Outcome, Ran, Shape, StageContext
from processors.errors import (
    FramesMissing,
    InvalidRequestError,
    MediaTooLargeError,
    ModelLoadError,
    PlanMismatchError,
    PromptTooLongError,
)
from processors.family import COUNTERS, Features, Run
from processors.fast import Call, Kernel, find_kernel
from processors.fast.kernel import KernelUnfitError
from processors.features import (
    Encoding,
    Joins,
    Tensors,
    check_executed,
    describe_tensors,
    encoding_of,
    find_joins,
    names_that_differ,
    split_evenly,
    without_compact,
    write_tensors,
)
from processors.kwargs import check_bounds, check_sampling, override_sampling, split_defaults
from processors.memo import Memo
from processors.replacement import code_runs, find_row_token
from processors.taped import Tapes, repeats_exactly
from processors.types import (
    ItemInput,
    ItemPlan,
    Modality,
    ProcessReport,
    ReplacementPart,
    StageTraits,
    TensorSpec,
)


class Stage(ABC):
    """Plans and processes the items of one modality; a subclass knows its media."""

    modality: ClassVar[Modality]

    def __init__(self, context: StageContext) -> None:
        self.context = context
        self.model = context.model
        self.limits = context.limits
        self.part = context.model.sub_processors[self.modality]
        self.defaults = hf.default_values(self.part)
        self.server_kwargs = split_defaults(context.spec.default_kwargs, self.modality)
        check_sampling(self.server_kwargs)
        self._merged: Memo[Hashable, dict[str, Any]] = Memo()
        self._shapes: Memo[Hashable, Shape] = Memo()
        self.joins = Joins()
        self.plans_on_meta = False
        self._kernel: Kernel | None = None
        self._tapes: Tapes | None = None
        self.batcher: MicroBatcher[Any, Outcome] | None = None
        self._unknown: frozenset[str] = frozenset()
        self._learned: tuple[TensorSpec, ...] = ()
        self.feature_names: tuple[str, ...] = ()
        self.warnings: tuple[str, ...] = ()

    @abstractmethod
    def plan(self, item: ItemInput) -> ItemPlan:
        """See `Engine.plan`."""

    @abstractmethod
    def process(
        self, item: ItemInput, plan: ItemPlan, outputs: Mapping[str, torch.Tensor]
    ) -> ProcessReport:
        """See `Engine.process`."""

    @abstractmethod
    def call(self, processor: hf.HfObject, media: Sequence[Any], merged: hf.Merged) -> hf.Processed:
        """Run items of this modality through the protocol together.

        Raises one of `hf.HF_ERRORS` where the processor cannot.
        """

    @abstractmethod
    def warm_up(self) -> None:
        """Process one small item."""

    def effective(self, item: ItemInput) -> dict[str, Any]:
        """Return the item's keyword arguments over the server's, bounded.

        Raises:
            InvalidRequestError, MediaTooLargeError: See `processors.kwargs.check_bounds`.
        """
        kwargs = override_sampling(self.server_kwargs, item.kwargs)
        check_bounds(kwargs, self.defaults, self.limits)
        return kwargs

    def merged(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return keyword arguments merged over the processor's own; remembered.

        Raises:
            InvalidRequestError: If the processor refuses a value.
        """
        key = json.dumps(kwargs, sort_keys=True)
        return dict(self._merged.get(key, lambda: self._merge(kwargs)))

    def shape_of(self, key: Hashable, run: Callable[[], tuple[Outcome, bool]]) -> Shape:
        """Return the planned shape of a key from a run without data; remembered.

        Args:
            key: Everything the shape depends on.
            run: Returns the outcome and whether it was on meta tensors.

        Raises:
            MediaTooLargeError, PromptTooLongError: If the item would exceed a limit.
        """
        return self._shapes.get(key, lambda: self.describe(*run()))

    def run(self, processor: hf.HfObject, media: Sequence[Any], merged: hf.Merged) -> Outcome:
        """Run items through the protocol together; the replacement is the first one's."""
        family = self.context.family
        call: Run = family.runs.get(self.modality, self.call)
        features, replacements = call(processor, media, merged)
        return self.finish(dict(features), list(replacements))

    def execute(
        self,
        media: Any,  # noqa: ANN401 - what `call` takes
        merged: hf.Merged,
        plan: ItemPlan,
        outputs: Mapping[str, torch.Tensor],
        num_threads: int = 1,
        likeness: Hashable | None = None,
    ) -> Ran:
        """Run one decoded item and write its tensors; return how it was run.

        Args:
            media: What `call` takes.
            merged: Its keyword arguments.
            plan: Its plan.
            outputs: Where its tensors go.
            num_threads: Most threads to use.
            likeness: Everything besides the pixels' values that the result depends on; None where
                that is not told.

        Raises:
            PlanMismatchError: If the result is not what was planned.
            FramesMissing: If the tokens follow from the content and are not those planned, or if
                the pixels cannot be encoded as was planned.
        """
        with torch.inference_mode():
            encoding = encoding_of(plan.tensors, outputs)
            if self._execute_fast(media, merged, plan, outputs, encoding, num_threads, likeness):
                return Ran("fast")
            if encoding != "plain":
                # Whoever asked for codes is warned; others may ask for the same item.
                raise FramesMissing(replace(without_compact(plan), exact=True))
            outcome, batch = self._run_among_others(media, merged)
            self.check_executed(outcome, plan)
            write_tensors(outcome.tensors, plan.tensors, outputs)
        return Ran("plain", batch)

    def _run_among_others(self, media: Any, merged: hf.Merged) -> tuple[Outcome, int]:  # noqa: ANN401
        """Run one decoded item, with others of its size where that was proven to be the same."""
        if self.batcher is None or merged != self.merged(self.server_kwargs):
            return self.run_real(media, merged), 1
        return self.batcher.submit(tuple(media.shape), media)

    def find_batcher(self, make: Maker) -> None:
        """Let equal-sized items share calls, if the spec allows it and nothing changes by it.

        Two equal items in one call must give what each gives alone, bit for bit.

        Args:
            make: Makes an item, without data or of noise.
        """
        spec, family = self.context.spec, self.context.family
        is_plain = self._kernel is None and family.prefix is None and not family.runs
        if spec.max_batch == 1 or not is_plain or self.depends_on_data():
            return
        item = make("noise").to(spec.device)
        other = item.flip(-1)
        try:
            with torch.inference_mode():
                apart = [
                    self.run_real(each, self.merged(self.server_kwargs)) for each in (item, other)
                ]
                together = self.run_batch([item, other])
        except (PlanMismatchError, *hf.HF_ERRORS):
            return
        if all(map(_are_equal, apart, together)):
            self.batcher = MicroBatcher(
                self.run_batch, max_items=spec.max_batch, wait_s=spec.batch_wait_s
            )

    def run_batch(self, media: Sequence[Any]) -> list[Outcome]:
        """Run equal-sized items in one call and tell them apart again.

        Raises:
            PlanMismatchError: If the processor fails, or gives other tensors than so many items'.
        """
        call: Run = self.context.family.runs.get(self.modality, self.call)
        with torch.inference_mode():
            try:
                features, texts = call(self.model.processor, media, self.merged(self.server_kwargs))
                joint = self.finish(dict(features), list(texts))
            except hf.HF_ERRORS as exc:
                message = f"The processor failed on {len(media)} items of one size."
                raise PlanMismatchError(message) from exc
            parts = {
                name: split_evenly(tensor, self.joins.layout(name), len(media))
                for name, tensor in joint.tensors.items()
            }
        return [
            Outcome(
                {name: split[place] for name, split in parts.items()},
                texts[place] if texts else None,
                {},
            )
            for place in range(len(media))
        ]

    def find_kernel(self) -> None:
        """Look for an exact fast kernel, if the spec allows one."""
        spec, family = self.context.spec, self.context.family
        if spec.allow_fast and family.allow_fast and spec.device == "cpu":
            self._kernel = find_kernel(self.part, self.server_kwargs)

    def find_tapes(self, make: Maker) -> None:
        """Let items of one likeness share a tape, if what one gives is exact.

        Args:
            make: Makes an item of noise.
        """
        if self._kernel is None or self.depends_on_data():
            return
        media, merged = make("noise"), self.merged(self.server_kwargs)
        try:
            with torch.inference_mode():
                if repeats_exactly(
                    self._kernel,
                    media.permute(1, 2, 0).contiguous().permute(2, 0, 1),
                    lambda call, item: self._run_fast(call, item, merged),
                    lambda item: self.run_real(item, merged),
                ):
                    self._tapes = Tapes()
        except (KernelUnfitError, PlanMismatchError, *hf.HF_ERRORS):
            return

    def _execute_fast(
        self,
        media: Any,  # noqa: ANN401 - what `call` takes
        merged: hf.Merged,
        plan: ItemPlan,
        outputs: Mapping[str, torch.Tensor],
        encoding: Encoding,
        num_threads: int,
        likeness: Hashable | None,
    ) -> bool:
        if self._kernel is None or self.depends_on_data():
            return False

        def run(call: Call, item: Any) -> Outcome:  # noqa: ANN401
            return self._run_fast(call, item, merged)

        def check(outcome: Outcome) -> None:
            check_executed(outcome.tensors, plan.tensors)
            self.check_executed(outcome, plan)

        try:
            call = self._kernel.start(outputs, encoding, num_threads)
            if self._tapes is None or likeness is None:
                outcome = run(call, media)
                check(outcome)
                call.write(outcome.tensors)
            else:
                call.write(self._tapes.run(likeness, plan, call, media, run, check))
        except (KernelUnfitError, *hf.HF_ERRORS):
            return False  # the plain processor runs, and says what is wrong if it is
        return True

    def _run_fast(self, call: Call, media: Any, merged: hf.Merged) -> Outcome:  # noqa: ANN401
        processor = hf.with_part(self.model.processor, self.modality, call.sub_processor)
        unseen = hf.with_text_unseen(processor, self.modality)
        return self.run(unseen, [media], merged)

    def run_real(self, media: Any, merged: hf.Merged) -> Outcome:  # noqa: ANN401
        """Run one decoded item that was planned.

        Raises:
            PlanMismatchError: If the processor fails all the same.
        """
        try:
            return self.run(self.model.processor, [media], merged)
        except hf.HF_ERRORS as exc:
            message = f"The processor failed on the {self.modality.value} that it planned."
            raise PlanMismatchError(message) from exc

    def run_empty(self, make: Maker, kwargs: Mapping[str, Any], what: str) -> tuple[Outcome, bool]:
        """Run one item without data: on meta tensors, or on zeros where that cannot be done.

        Args:
            make: Makes the item.
            kwargs: Its effective keyword arguments.
            what: The item in words, for the caller's error.

        Raises:
            InvalidRequestError: If the processor does not take such an item.
        """
        merged = self.merged(kwargs)
        if self.plans_on_meta:
            try:
                return self.run(self.model.planner, [make("meta")], merged), True
            except hf.HF_ERRORS:
                # Some paths need data (a crop wider than the image); zeros tell whether it is that.
                return self._run_zeros(make, merged, kwargs, what), False
        return self._run_zeros(make, merged, kwargs, what), False

    def learn(self, pair: Sequence[Maker]) -> None:
        """Learn from two items of different size how this model plans, and how tensors join.

        Raises:
            ModelLoadError: If the processor takes neither.
        """
        merged = self.merged(self.server_kwargs)
        planner = self.model.planner
        try:
            outcomes = [self.run(planner, [make("meta")], merged) for make in pair]
            self.plans_on_meta = True
        except hf.HF_ERRORS:
            outcomes = self._run_pair_of_zeros(pair, merged)
        alone = [outcome.tensors for outcome in outcomes]
        try:
            media = [make("meta" if self.plans_on_meta else "zeros") for make in pair]
            joint = self.run(planner, media, merged).tensors
        except hf.HF_ERRORS:
            joint = None  # the processor takes no two items of different size together
        self.joins = find_joins(alone[0], alone[1], joint).override(self.context.family.layouts)
        if not self.plans_on_meta:
            noisy = self.run(planner, [pair[0]("noise")], merged).tensors
            self._unknown = names_that_differ(alone[0], noisy)
        specs = [spec for tensors in alone for spec in self._specs(tensors, self.plans_on_meta)]
        self._learned = tuple(specs)
        names = [spec.name for spec in specs if spec.role == "feature"]
        self.feature_names = tuple(dict.fromkeys(names))
        self._check_rows(outcomes[-1])

    def _check_rows(self, outcome: Outcome) -> None:
        """Refuse a model of whose replacement texts no token is known to be a row."""
        if outcome.replacement is None or self.context.family.cross_attention:
            return
        parts = code_runs(outcome.replacement, self.context.tokens.repeating)
        if find_row_token(parts, self.context.tokens.rows[self.modality])[0] is None:
            raise ModelLoadError(
                f"Model '{self.context.spec.name}': what a placeholder of {self.modality.value} "
                "becomes holds no token that its config or processor names as an encoder row."
            )

    def _run_pair_of_zeros(self, pair: Sequence[Maker], merged: hf.Merged) -> list[Outcome]:
        try:
            return [self.run(self.model.planner, [make("zeros")], merged) for make in pair]
        except hf.HF_ERRORS as exc:
            raise ModelLoadError(
                f"Model '{self.context.spec.name}': its processor "
                f"({type(self.model.processor).__name__}) says of no {self.modality.value} what a "
                "placeholder becomes, so items cannot be told apart."
            ) from exc

    def _run_zeros(
        self,
        make: Maker,
        merged: hf.Merged,
        kwargs: Mapping[str, Any],
        what: str,
    ) -> Outcome:
        try:
            return self.run(self.model.planner, [make("zeros")], merged)
        except hf.HF_ERRORS as exc:
            raise self.refuse(kwargs, what) from exc

    def finish(self, features: Features, replacements: list[str]) -> Outcome:
        """Turn what a sub-processor gave for an item into tensors, as the processor's call does."""
        processor, family = self.model.processor, self.context.family
        if family.finish is not None:
            features = family.finish(processor, self.modality, features)
        dropped = COUNTERS | family.counters | hf.unused_names(processor)
        kept = {name: value for name, value in features.items() if name not in dropped}
        tensors = hf.to_tensors(kept)
        return Outcome(tensors, replacements[0] if replacements else None, features)

    def item_plan(
        self, item: ItemInput, shape: Shape, base: ItemPlan, kwargs: Mapping[str, Any]
    ) -> ItemPlan:
        """Return `base` with a shape put in, and the family's prefix for the item's index."""
        replacement = shape.replacement
        if self.context.family.prefix is not None and replacement is not None:
            prefix = self.context.family.prefix(
                self.model.processor, self.modality, self.merged(kwargs), item.index
            )
            parts = self.model.ids_of_parts((ReplacementPart(prefix),) if prefix else ())
            replacement = (*parts, *replacement)
        return replace(
            base,
            replacement=replacement,
            num_tokens=shape.num_tokens,
            row_token_id=shape.row_token_id,
            tensors=shape.tensors,
        )

    def replanned(self, plan: ItemPlan, warning: tuple[str, str]) -> FramesMissing:
        """Return what tells the caller to go on under an exact plan of what does decode."""
        warnings = (*plan.warnings, warning)
        return FramesMissing(replace(plan, exact=True, warnings=warnings))

    def depends_on_data(self) -> bool:
        """Return whether an item's replacement is only known once it is processed."""
        return self.modality in self.context.family.data_dependent

    def check_executed(self, outcome: Outcome, plan: ItemPlan) -> None:
        """Check an executed item's replacement against its plan.

        Raises:
            FramesMissing: With a plan of what was executed, where the replacement depends on data.
            PlanMismatchError: Where it should not.
        """
        executed = outcome.replacement or ""
        shape = self.describe(outcome, on_meta=False) if self.depends_on_data() else None
        if shape is not None and (shape.replacement, shape.num_tokens) != (
            plan.replacement,
            plan.num_tokens,
        ):
            new_plan = replace(
                plan,
                replacement=shape.replacement,
                num_tokens=shape.num_tokens,
                tensors=shape.tensors,
            )
            raise self.replanned(
                new_plan, ("replanned", "The tokens follow from the content, not from the header.")
            )
        if plan.replacement and self.context.family.prefix is None:
            planned = sum(len(part.text) * part.times for part in plan.replacement)
            if planned != len(executed):
                raise PlanMismatchError("The processor's replacement differs from the planned one.")

    def refuse(self, kwargs: Mapping[str, Any], what: str) -> InvalidRequestError:
        """Return the error for an item that the processor does not take."""
        why = " with these mm_processor_kwargs" if kwargs else ""
        return InvalidRequestError(f"The model's processor does not take {what}{why}.")

    def _merge(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return hf.merge_kwargs(self.model.processor, self.modality, kwargs)
        except hf.HF_ERRORS as exc:
            message = "The model's processor refuses a value of mm_processor_kwargs."
            raise InvalidRequestError(message) from exc

    def _specs(self, tensors: Tensors, on_meta: bool) -> tuple[TensorSpec, ...]:
        return describe_tensors(tensors, self.joins, on_meta=on_meta, unknown=self._unknown)

    def describe(self, outcome: Outcome, on_meta: bool) -> Shape:
        """Return the shape of an item's outcome; `on_meta`: what is not meta is known.

        Raises:
            MediaTooLargeError, PromptTooLongError: If the item would exceed a limit.
            InvalidRequestError: If it would become no tokens.
        """
        specs = self._with_compact(self._specs(outcome.tensors, on_meta))
        self._check_size(specs)
        if outcome.replacement is None:
            return Shape(None, 0, None, specs)
        tokens = self.context.tokens
        parts = code_runs(outcome.replacement, tokens.repeating)
        if self.context.family.cross_attention:
            return Shape(self.model.ids_of_parts(parts), 0, None, specs)
        row, num_tokens = find_row_token(parts, tokens.rows[self.modality])
        if row is None:
            raise InvalidRequestError(
                f"The {self.modality.value} is too small for the model: it would become no tokens."
            )
        if num_tokens > self.limits.max_item_tokens:
            raise PromptTooLongError(
                f"The item becomes {num_tokens} tokens; at most {self.limits.max_item_tokens} are "
                "taken."
            )
        told = self.model.ids_of_parts(parts)
        return Shape(told, num_tokens, self.model.token_id(row), specs)

    def _with_compact(self, specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """Return specs of which those made of pixels say how they are stored as codes."""
        kernel = self._kernel
        if kernel is None or self.depends_on_data():
            return specs
        return tuple(
            replace(spec, compact=kernel.compact_of(spec.name, spec.shape))
            if spec.role == "feature" and spec.normalized
            else spec
            for spec in specs
        )

    @property
    def has_compact(self) -> bool:
        """Whether items can be had as codes."""
        return any(spec.compact is not None for spec in self._with_compact(self._learned))

    @property
    def traits(self) -> StageTraits:
        """How items are planned, and what stands in for the plain processor."""
        plans_by = "meta" if self.plans_on_meta else "zeros"
        if self.modality in self.context.family.runs:
            plans_by = f"function on {plans_by}"
        return StageTraits(plans_by, self._kernel is not None, self.has_compact)

    def _check_size(self, specs: tuple[TensorSpec, ...]) -> None:
        nbytes = sum(spec.nbytes for spec in specs)
        if nbytes > self.limits.max_feature_bytes:
            raise MediaTooLargeError(
                f"The item's features take {nbytes} bytes; at most "
                f"{self.limits.max_feature_bytes} are taken."
            )


def _are_equal(one: Outcome, other: Outcome) -> bool:
    """Return whether two outcomes are the same, bit for bit."""
    return (
        one.replacement == other.replacement
        and one.tensors.keys() == other.tensors.keys()
        and all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())
    )
