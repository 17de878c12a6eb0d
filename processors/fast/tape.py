"""Running a processor's control flow once per likeness of item, and its tensor work ever after.

What a processor does to pixels follows from their shape and its keyword arguments, as long as it
never looks at a value. A `Recording` sees every torch function of one call and notes those that
work on the pixels, down to what they give; a `Tape` repeats them on other pixels of that shape,
without the checks, groupings and look-ups between them, which cost more than a small picture does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from processors.fast.kernel import Call

MAX_CONSTANTS_NBYTES = 64 << 10
"""Bytes of tensors without pixels that a tape may hold; a call with more is not taped."""

_PROPERTIES = (
    "shape", "dtype", "device", "layout", "ndim", "itemsize", "nbytes", "is_cuda", "is_meta",
    "is_sparse", "is_quantized", "is_nested", "requires_grad",
)  # fmt: skip
_METHODS = (
    "size", "stride", "dim", "numel", "nelement", "element_size", "ndimension", "storage_offset",
    "is_contiguous", "is_floating_point", "is_complex", "is_signed", "get_device", "__len__",
)  # fmt: skip
_FORM = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in _PROPERTIES]
    + [getattr(torch.Tensor, name) for name in _METHODS]
    + [torch.is_floating_point, torch.is_complex, torch.numel]
)
"""What tells of a tensor's form alone."""

_COUNTING = frozenset({
    "nonzero", "argwhere", "unique", "unique_consecutive", "masked_select", "bincount",
    "repeat_interleave", "combinations", "count_nonzero",
})  # fmt: skip
"""What returns as much as there are values of some kind."""

_NEW = frozenset({
    torch.zeros, torch.ones, torch.full, torch.empty,
    torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like,
    torch.Tensor.new_zeros, torch.Tensor.new_ones, torch.Tensor.new_full, torch.Tensor.new_empty,
})  # fmt: skip
"""What makes a tensor that pixels may be written into."""


@dataclass(frozen=True, slots=True)
class _Register:
    """A tensor of the call, by number; 0 is the item's pixels."""

    index: int


@dataclass(frozen=True, slots=True)
class _Nest:
    """A list or tuple that holds registers."""

    kind: type
    items: tuple[Any, ...]


class _TheCall:
    """Stands for the call that a tape runs in."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One function of a tape."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    made: tuple[int, ...]
    """The registers that its result fills."""
    is_own: bool
    """Whether it is a method of the call, which may write the item's outputs."""
    last: tuple[int, ...] = ()
    """The registers that nobody needs after it."""


@dataclass(frozen=True, slots=True)
class Tape:
    """What one call did to its pixels, to be done to others of the same shape and strides.

    Immutable; threads may share it.
    """

    _steps: tuple[_Step, ...]
    _num_registers: int
    _results: Mapping[str, Any]
    _table: torch.Tensor | None

    def play(self, call: Call, media: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the call's features for other pixels.

        Args:
            call: The call under way, which has the passes that are ours.
            media: Pixels of the shape and strides that were recorded.

        Raises:
            KernelUnfitError: As the call's own methods.
        """
        registers: list[torch.Tensor | None] = [None] * self._num_registers
        registers[0] = media
        call.table = self._table
        for step in self._steps:
            args = [_filled(each, registers, call) for each in step.args]
            kwargs = {name: _filled(each, registers, call) for name, each in step.kwargs.items()}
            result = step.function(*args, **kwargs)
            for index, tensor in zip(step.made, _with_data(result), strict=True):
                registers[index] = tensor
            for index in step.last:
                registers[index] = None
        return {name: _filled(each, registers, call) for name, each in self._results.items()}


class Recording(TorchFunctionMode):
    """Within it, whatever is done to an item's pixels is noted.

    Args:
        call: The call under way; its methods that torch's modes can see are noted as its own.
        media: The item's pixels.
    """

    def __init__(self, call: Call, media: torch.Tensor) -> None:
        super().__init__()
        self._call = call
        self._steps: list[_Step] = []
        self._is_spoiled = False
        self._num_registers = 1
        # Weak: a recorded call holds no more than any other.
        self._registers = WeakTensorKeyDictionary({media: _Register(0)})
        self._pixels = {_memory_of(media)}
        """The memory that holds pixels, or what was made of them."""
        self._writes = False
        """Whether anything was changed in place."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Run a function, and note it if it works on pixels."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self._is_spoiled and func not in _FORM:
            self._note(func, args, kwargs, result)
        return result

    def tape(self, features: Mapping[str, torch.Tensor]) -> Tape | None:
        """Return how the features were made of the pixels.

        None where that cannot be repeated: a value was looked at, or much of what was used was
        neither made of pixels nor made anew.
        """
        results = {name: self._frozen(tensor) for name, tensor in features.items()}
        steps = _needed(self._steps, results.values(), writes=self._writes)
        held = _with_data(list(results.values()))
        for step in steps:
            held += _with_data((*step.args, *step.kwargs.values()))
        if self._is_spoiled or sum(each.nbytes for each in held) > MAX_CONSTANTS_NBYTES:
            return None
        return Tape(tuple(steps), self._num_registers, results, self._call.table)

    def _note(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,  # noqa: ANN401
    ) -> None:
        taken = tuple(self._frozen(each) for each in args)
        named = {name: self._frozen(each) for name, each in kwargs.items()}
        if function not in _NEW and not any(True for _ in _registers((*taken, *named.values()))):
            return
        has_pixels = any(
            _memory_of(each) in self._pixels for each in _tensors((*args, *kwargs.values()))
        )
        if has_pixels and _tells_values(function, args):
            self._is_spoiled = True
            return
        is_own = any(each is _TheCall for each in taken)
        if _changes_in_place(function, kwargs):
            # What a caller does not get back is not in a register, nor is what stands for `out`.
            if type(taken[0]) is not _Register or "out" in kwargs:
                self._is_spoiled = True
                return
            self._writes = True
            if has_pixels:
                self._pixels.add(_memory_of(args[0]))
        made = _with_data(result)
        if not made and not is_own and result is not None:
            # Without data it may only be a form; what is no tensor at all tells a value.
            self._is_spoiled |= has_pixels and not isinstance(result, torch.Tensor)
            return
        if has_pixels:
            self._pixels.update(_memory_of(each) for each in made)
        places = tuple(self._place(tensor) for tensor in made)
        self._steps.append(_Step(function, taken, named, places, is_own))

    def _place(self, tensor: torch.Tensor) -> int:
        """Return the register of a result; a function may return what it was given."""
        if tensor not in self._registers:
            self._registers[tensor] = _Register(self._num_registers)
            self._num_registers += 1
        index: int = self._registers[tensor].index
        return index

    def _frozen(self, value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, torch.Tensor) and value in self._registers:
            return self._registers[value]
        if value is self._call:
            return _TheCall
        if type(value) in {list, tuple}:
            items = tuple(self._frozen(each) for each in value)
            return _Nest(type(value), items) if any(True for _ in _registers(items)) else value
        return value


def _filled(value: Any, registers: list[torch.Tensor | None], call: Call) -> Any:  # noqa: ANN401
    """Return an argument with what it stands for put in."""
    if type(value) is _Register:
        return registers[value.index]
    if value is _TheCall:
        return call
    if type(value) is _Nest:
        return value.kind(_filled(each, registers, call) for each in value.items)
    return value


def _registers(values: Iterable[Any]) -> Iterable[int]:
    """Yield the registers that arguments hold."""
    for value in values:
        if type(value) is _Register:
            yield value.index
        elif type(value) is _Nest:
            yield from _registers(value.items)


def _tensors(value: Any) -> Iterable[torch.Tensor]:  # noqa: ANN401
    """Yield the tensors in an argument, a result or a part of a step."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif type(value) is _Nest:
        yield from _tensors(value.items)


def _with_data(value: Any) -> list[torch.Tensor]:  # noqa: ANN401
    return [each for each in _tensors(value) if not each.is_meta]


def _memory_of(tensor: torch.Tensor) -> int:
    """Return what tensors that share memory have in common."""
    address: int = tensor.untyped_storage()._cdata
    return address


def _tells_values(function: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Return whether the form of what a function returns depends on values of its arguments."""
    if function is torch.Tensor.__getitem__:
        keys = args[1] if isinstance(args[1], tuple) else (args[1],)
        bounds = [end for key in keys if isinstance(key, slice) for end in (key.start, key.stop)]
        masks = [key for key in _tensors(list(keys)) if key.dtype in {torch.bool, torch.uint8}]
        return bool(masks) or any(isinstance(bound, torch.Tensor) for bound in bounds)
    name = getattr(function, "__name__", "")
    return name in _COUNTING or (name == "where" and len(args) == 1)


def _changes_in_place(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a function may write into its arguments, which others may share."""
    name = getattr(function, "__name__", "")
    is_trailing = name.endswith("_") and not name.endswith("__")
    is_dunder = name in {"__set__", "__setitem__", "__delitem__"} or (
        name.startswith("__i") and name not in {"__index__", "__int__", "__invert__", "__iter__"}
    )
    return is_trailing or is_dunder or bool(kwargs.get("inplace")) or kwargs.get("out") is not None


def _needed(steps: list[_Step], results: Iterable[Any], *, writes: bool) -> list[_Step]:
    """Return the steps by which results are made, each with the registers that it uses last.

    Where something is written into, a step may matter by what shares memory with what it writes:
    then all steps are, and memory is shared or not as it was in the call.
    """
    alive = set(_registers(results))
    kept: list[_Step] = []
    for step in reversed(steps if writes else [_without_copy(step) for step in steps]):
        if alive.isdisjoint(step.made) and not step.is_own and not writes:
            continue
        used = set(_registers((*step.args, *step.kwargs.values())))
        last = (used | set(step.made)) - alive
        alive |= used
        kept.append(replace(step, last=tuple(last)))
    return kept[::-1]


def _without_copy(step: _Step) -> _Step:
    """Return a step that joins one tensor alone without copying it."""
    joined = step.args[0] if step.args else None
    if type(joined) is not _Nest or len(joined.items) != 1:
        return step
    if step.function is torch.cat:
        return replace(step, function=_same, args=joined.items, kwargs={})
    if step.function is torch.stack:
        dim = step.args[1] if len(step.args) > 1 else step.kwargs.get("dim", 0)
        return replace(step, function=torch.unsqueeze, args=(*joined.items, dim), kwargs={})
    return step


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
