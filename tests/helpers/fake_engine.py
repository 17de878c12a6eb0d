"""A tiny engine that misbehaves on demand, for tests of the worker pool.

What an item does stands in its settings: `{"do": "crash"}`. It is a real engine to the worker; only
its factory's name is told to the pool.
"""

import importlib
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from processors.errors import FramesMissing, MediaDecodeError, ModelLoadError
from processors.types import (
    ChatInput,
    DecodeLimits,
    FieldLayout,
    ItemInput,
    ItemPlan,
    MediaInfo,
    Modality,
    ModelInfo,
    ModelSpec,
    ProcessReport,
    RenderedPrompt,
    TensorSpec,
)

FACTORY = "tests.helpers.fake_engine:FakeEngine"
HANG_S = 600.0


class FakeEngine:
    """Does what an item's settings say."""

    def __init__(self, spec: ModelSpec, limits: DecodeLimits) -> None:
        if spec.path == "broken":
            message = "this model directory is broken"
            raise ModelLoadError(message)
        if spec.path == "dies":
            os._exit(3)
        # As the real one does: what is loaded by now does not count as a job's memory.
        importlib.import_module("torch")
        self.info = ModelInfo(
            name=spec.name, family="fake", architecture="Fake", modalities=(Modality.IMAGE,),
            placeholders={}, special_tokens={}, features={}, accepted_kwargs={},
            fingerprint="0" * 64, fingerprint_inputs={}, prompt_fingerprint=None,
            tokenizer_json=None,
        )  # fmt: skip

    def warm_up(self) -> None:
        """Nothing to warm."""

    def plan(self, item: ItemInput) -> ItemPlan:
        """Plan one uint8 tensor of the size asked for."""
        act(item.settings)
        size = int(item.settings.get("size", 8))
        tensor = TensorSpec("x", "uint8", (size,), "feature", FieldLayout("batched"))
        source = MediaInfo(Modality.IMAGE, "image/png", sum(len(d) for d in item.data))
        return ItemPlan(Modality.IMAGE, source, None, 0, None, (tensor,))

    def process(self, item: ItemInput, plan: ItemPlan, outputs: Mapping[str, Any]) -> ProcessReport:
        """Fill the tensor with the item's index, and tell the threads it was given if asked to."""
        act(item.settings)
        if item.settings.get("do") == "replan":
            raise FramesMissing(plan)
        told = item.settings.get("do") == "tell_threads"
        outputs["x"].fill_(item.num_threads if told else item.index)
        return ProcessReport(1.0, 2.0)

    def render(self, chat: ChatInput) -> RenderedPrompt:
        """Return the messages as they are."""
        return RenderedPrompt(((repr(chat.messages), True),))

    def encode(self, prompt: RenderedPrompt) -> list[int]:
        """Return code points."""
        return [ord(c) for c in prompt.text]


def act(settings: Mapping[str, Any]) -> None:
    """Do what the settings say."""
    do = settings.get("do")
    if do == "wait":
        _wait_for(settings["file"])
    elif do in _ACTIONS:
        _ACTIONS[do]()


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(HANG_S)


def _eat() -> None:
    hoard = []
    while True:
        hoard.append(b"\x01" * (8 << 20))


_hoard: list[bytes] = []


def _keep() -> None:
    """Run out of memory and stay large, as a heap may that is not given back."""
    _hoard.append(b"\x01" * (320 << 20))
    raise MemoryError


def _nap() -> None:
    time.sleep(1.0)


def _fail() -> None:
    raise MediaDecodeError("cut", "place")


def _bug() -> None:
    raise ZeroDivisionError


def _flood() -> None:
    for _ in range(2000):
        os.write(2, b"x" * 1000 + b"\n")


_ACTIONS = {
    "crash": _crash,
    "exit": lambda: os._exit(7),
    "hang": lambda: time.sleep(HANG_S),
    "eat": _eat,
    "keep": _keep,
    "nap": _nap,
    "fail": _fail,
    "bug": _bug,
    "flood": _flood,
}


def _wait_for(path: str) -> None:
    """Say that we began, then wait until the file is gone."""
    with open(f"{path}.{os.getpid()}.{time.monotonic_ns()}.began", "w"):
        pass
    while os.path.exists(path):
        time.sleep(0.005)
