"""How a request wants to be answered, resolved against the model and the server's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.catalog import ServedModel
from app.config import TransportSettings
from app.errors import FingerprintMismatchError
from app.schemas import PreprocessRequest, WireConsumer, WirePreprocessed
from processors.errors import InvalidRequestError, UnsupportedOptionError

LEASED = frozenset({"shm", "ref", "cuda_ipc"})
"""Transports whose features stay in the store until the consumer has them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The transport an answer uses, and what was passed over for it."""

    name: str
    passed_over: tuple[tuple[str, str], ...] = ()
    """(transport, sentence why) of what stood before it in the caller's list."""


def choose_transport(
    request: PreprocessRequest,
    settings: TransportSettings,
    host: Mapping[str, Any],
    pool_gpu: str | None,
) -> Choice:
    """Return the first transport of the caller's list that can be had.

    Raises:
        UnsupportedOptionError: If none can, for reasons in the request or the settings.
    """
    passed_over: list[tuple[str, str]] = []
    for name in request.transports:
        reason = _why_not(name, request.consumer, settings, host, pool_gpu)
        if reason is None:
            return Choice(name, tuple(passed_over))
        passed_over.append((name, reason))
    reasons = "; ".join(f"{name}: {reason}" for name, reason in passed_over)
    raise UnsupportedOptionError(f"No transport asked for can be had. {reasons}.", "transport")


def _why_not(
    name: str,
    consumer: WireConsumer | None,
    settings: TransportSettings,
    host: Mapping[str, Any],
    pool_gpu: str | None,
) -> str | None:
    if name in ("safetensors", "none"):
        return None
    if name == "ref":
        return None if settings.ref else "switched off in the server's settings"
    if name == "cuda_ipc":
        return _why_no_device(consumer, host, pool_gpu)
    if not settings.shm:
        return "switched off in the server's settings"
    if consumer is None or consumer.shm is None:
        return "needs consumer.shm, the proof that /dev/shm is shared (see GET /models)"
    if consumer.shm != host["shm"]:
        return "consumer.shm differs from this server's, so /dev/shm is not shared"
    return None


def _why_no_device(
    consumer: WireConsumer | None, host: Mapping[str, Any], pool_gpu: str | None
) -> str | None:
    if pool_gpu is None:
        return "no CUDA pool is open on this server"
    if consumer is None:
        return "needs consumer with shm, gpus and pidns (see GET /models)"
    if consumer.shm != host["shm"] or consumer.pidns != host["pidns"]:
        return "consumer differs from this server's, so memory cannot be shared"
    if pool_gpu not in (consumer.gpus or ()):
        return "the consumer does not see the GPU of this server's pool"
    return None


def resolve_dtype(request: PreprocessRequest, model: ServedModel) -> str:
    """Return the dtype of floating features.

    Raises:
        UnsupportedOptionError: If `model` is asked for and the model's config names none.
    """
    if request.dtype != "model":
        return request.dtype
    if model.info.model_dtype not in ("float32", "bfloat16", "float16"):
        raise UnsupportedOptionError(
            "The model's config names no dtype; give float32, bfloat16 or float16.", "dtype"
        )
    return model.info.model_dtype


def _brings_ids(request: PreprocessRequest) -> bool:
    """Return whether a preprocessed entry's own ids take the prompt's place."""
    entries = [*(request.images or ()), *(request.videos or ()), *(request.audios or ())]
    is_alone = request.prompt is None and request.messages is None
    return is_alone and any(
        isinstance(e, WirePreprocessed) and e.input_ids is not None for e in entries
    )


def check(request: PreprocessRequest, model: ServedModel, *, templates_allowed: bool) -> None:
    """Refuse what is not built or not allowed, and what the caller expects to be otherwise.

    Raises:
        UnsupportedOptionError: For an option that cannot be had here.
        InvalidRequestError: For options that contradict each other.
        FingerprintMismatchError: If the processor is not the one the caller expects.
    """
    if request.fingerprint is not None and request.fingerprint != model.info.fingerprint:
        raise FingerprintMismatchError(
            "The processor served has another fingerprint; see GET /models.", "fingerprint"
        )
    if request.chat_template is not None and not templates_allowed:
        raise UnsupportedOptionError(
            "This server does not render templates of requests.", "chat_template"
        )
    if request.messages is not None and not model.info.has_chat_template:
        raise UnsupportedOptionError(
            "The model has no chat template; send prompt or input_ids.", "messages"
        )
    if request.expanded is not False and request.input_ids is None and not _brings_ids(request):
        raise InvalidRequestError("Only input_ids can come expanded.", "expanded")
    if not request.wait and not {"shm", "ref"} & set(request.transports):
        raise InvalidRequestError("wait: false needs the shm or ref transport.", "wait")
