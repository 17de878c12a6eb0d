"""Frozen settings: environment `MMPREP_*` (nested with `__`), checked as a whole at start.

Nothing here is imported as a global: `load_settings()` reads the environment once, `create_app`
takes the result. All problems, unknown variables included, are told in one message.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.loading.settings import LoadingSettings
from app.sizing import WorkerSettings
from processors.types import DecodeLimits, ModelSpec

ENV_PREFIX = "MMPREP_"
IGNORED_ENV = re.compile(r"MMPREP_(CLIENT_.*|SERVICE_.*|PORT|PORT_.*)")
"""The client's own variables, and what Kubernetes injects for a service named `mmprep`."""
MIB = 1 << 20


class SettingsError(Exception):
    """Raised when settings cannot be used; its text lists every problem."""


class Section(BaseModel):
    """Base of the nested sections."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LimitSettings(Section):
    """Bounds on one request and its media; everything beyond is refused before allocation."""

    body_bytes: int = Field(64 * MIB, ge=1024)
    """Bytes of one request body, files included."""
    items: int = Field(128, ge=1)
    """Media items of one request."""
    media_bytes: int = Field(64 * MIB, ge=1)
    """Encoded bytes of one image or audio clip."""
    video_bytes: int = Field(512 * MIB, ge=1)
    """Encoded bytes of one video."""
    decoded_pixels: int = Field(100_000_000, ge=1)
    """Pixels of one image, or of one video's kept frames at their stored size."""
    frames: int = Field(768, ge=1)
    """Frames kept of one video."""
    audio_s: float = Field(3600.0, gt=0)
    """Seconds of one audio clip."""
    prompt_tokens: int = Field(262_144, ge=1)
    """Tokens of the expanded prompt."""
    feature_bytes: int = Field(1 << 30, ge=1)
    """Bytes of one item's tensors."""
    inline_bytes: int = Field(64 * MIB, ge=1)
    """Bytes of inline base64 in one JSON answer."""
    request_s: float = Field(120.0, gt=0)
    """Seconds from receipt after which a request without `deadline_ms` is given up."""
    decode_s: float = Field(30.0, gt=0)
    """Seconds one job may take in a worker before the worker is killed."""

    def decode(self) -> DecodeLimits:
        """Return the limits that planning and decoding enforce."""
        return DecodeLimits(
            max_pixels=self.decoded_pixels,
            max_frames=self.frames,
            max_audio_s=self.audio_s,
            max_feature_bytes=self.feature_bytes,
            max_item_tokens=self.prompt_tokens,
            max_decode_s=self.decode_s,
        )


class AdmissionSettings(Section):
    """How much work is let in at once, and how much may wait."""

    requests: int = Field(512, ge=1)
    """Requests in the house, waiting ones included; one more is 429 `overloaded`."""
    body_bytes: int = Field(512 * MIB, ge=MIB)
    """Request bodies and fetched media held at once."""
    pixels: int = Field(1_000_000_000, ge=1)
    """Planned source pixels of items being executed or queued."""
    planned_bytes: int = Field(4 << 30, ge=1)
    """Planned feature bytes of items being executed or queued."""


def _octal(value: object) -> object:
    """Read permissions as chmod does: `640`, `0640` and `0o640` are one."""
    if isinstance(value, str):
        return int(value, 8)
    return value


class StoreSettings(Section):
    """The feature store in shared memory."""

    nbytes: int | None = Field(None, ge=MIB)
    """Bytes of the store; default 2 GiB or half of the free shared memory, whichever is less."""
    segment_bytes: int = Field(1 << 30, ge=MIB)
    """Bytes of one segment at most."""
    staging_bytes: int | None = Field(None, ge=MIB)
    """Bytes for encoded media on their way to the workers; default an eighth of the store."""
    directory: str = "/dev/shm"  # noqa: S108 - the file system POSIX shared memory lives in
    mode: Annotated[int, BeforeValidator(_octal)] = Field(0o600, ge=0, le=0o777)
    """Permissions of the segments, octal as for chmod; 0640 where the engine has another user."""
    group: int | None = None
    """Group id of the segments."""
    lease_ttl_s: float = Field(300.0, gt=0, le=1800)
    """Life of a lease where the request names none."""
    grace_s: float = Field(60.0, ge=0)
    """Seconds after its lease's expiry before a region may be evicted."""
    quota_bytes: int | None = Field(None, ge=1)
    """Leased bytes per API key."""
    private: bool = False
    """Whether `/features` needs a lease: a hash is then no credential."""
    bytes_by_hash_s: float = Field(60.0, ge=0)
    """Seconds for which media read for `plan_hash` stay readable by hash."""


class TransportSettings(Section):
    """Which locations a feature may be answered with."""

    shm: bool = True
    """Offer `shm` to consumers that prove they share this machine's `/dev/shm`."""
    ref: bool = True
    """Offer `ref`: a URL to pull from."""
    cuda_ipc: bool = False
    """Offer `cuda_ipc`: features in a pool of GPU memory that consumers map."""
    cuda_pool_bytes: int = Field(1 << 30, ge=MIB)
    """Bytes of that pool, on the first GPU this process sees."""
    advertise_url: str | None = None
    """Base URL that consumers reach this server under; default: the request's own host."""
    stalled_reader_s: float = Field(30.0, gt=0)
    """Seconds without progress after which a reader is cut."""


class ServerSettings(Section):
    """The HTTP edge."""

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    uds: str | None = None
    """Path of a unix socket to serve beside or instead of TCP."""
    api_keys: tuple[SecretStr, ...] = ()
    """Bearer keys; none means no authentication."""
    exempt_metrics: bool = True
    """Whether `/metrics` is answered without a key."""
    drain_s: float = Field(30.0, ge=0)
    """Seconds that requests in flight get after SIGTERM."""
    keep_alive_s: int = Field(75, ge=1)
    body_timeout_s: float = Field(30.0, gt=0)
    """Seconds without a byte of the body after which a request is 408."""
    request_templates: bool = False
    """Whether a request may bring its own chat template."""


class TelemetrySettings(Section):
    """What is told about the running service."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"


class ModelSettings(Section):
    """How models are loaded."""

    device: str = "cpu"
    image_backend: Literal["torchvision", "pil"] = "torchvision"
    trust_remote_code: bool = False
    mm_process_config: dict[str, Any] = Field(default_factory=dict)
    """Default `mm_processor_kwargs` of every model; enter the fingerprint."""
    video_fps: float = Field(2.0, gt=0)
    """Frames a second where the processor has no rule of its own."""
    fast_kernels: bool = True
    """Whether kernels proven equal to the plain processor may stand in for it."""
    max_batch: int | None = Field(None, ge=1, le=256)
    """Images of one size that may share a call, where that was proven to change nothing; default 8
    on a device, 1 on the CPU. Takes as many `workers.threads`."""
    batch_wait_ms: float = Field(2.0, ge=0, le=1000)
    """How long an image waits for others of its size."""


class Settings(BaseSettings):
    """All settings of one service."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid"
    )

    models: Annotated[tuple[str, ...], NoDecode] = ()
    """`PATH`, `NAME=PATH` or a cached hub id, comma-separated; none: the embedded demo model."""
    model: ModelSettings = ModelSettings()
    workers: WorkerSettings = WorkerSettings()
    limits: LimitSettings = LimitSettings()
    admission: AdmissionSettings = AdmissionSettings()
    loading: LoadingSettings = LoadingSettings()
    store: StoreSettings = StoreSettings()
    transport: TransportSettings = TransportSettings()
    server: ServerSettings = ServerSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @field_validator("models", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("models")
    @classmethod
    def _unique(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = [split_model(text)[0] for text in value]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            msg = f"served twice: {', '.join(twice)}; give them names with NAME=PATH"
            raise ValueError(msg)
        return value

    def model_specs(self) -> tuple[ModelSpec, ...]:
        """Return what to load, the demo model if nothing was named."""
        from processors.demo import demo_model_path

        named = [split_model(text) for text in self.models]
        if not named:
            named = [("qwen2.5-vl-demo", str(demo_model_path()))]
        return tuple(
            ModelSpec(
                name=name,
                path=path,
                device=self.model.device,
                image_backend=self.model.image_backend,
                trust_remote_code=self.model.trust_remote_code,
                default_kwargs=self.model.mm_process_config,
                video_fps=self.model.video_fps,
                allow_fast=self.model.fast_kernels,
                max_batch=self.model.max_batch or (1 if self.model.device == "cpu" else 8),
                batch_wait_s=self.model.batch_wait_ms / 1000,
            )
            for name, path in named
        )


def split_model(text: str) -> tuple[str, str]:
    """Return the served name and the path or hub id of one MODEL argument."""
    name, sign, path = text.partition("=")
    if sign and name and path:
        return name, path
    return text.rstrip("/").rsplit("/", 1)[-1], text


def known_env_names() -> set[str]:
    """Return every variable the settings read, in upper case, sections' fields included."""
    names = set()
    for field, info in Settings.model_fields.items():
        names.add(f"{ENV_PREFIX}{field}".upper())
        section = info.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            names |= {f"{ENV_PREFIX}{field}__{sub}".upper() for sub in section.model_fields}
    return names


def load_settings(environ: Mapping[str, str] | None = None, **overrides: object) -> Settings:
    """Read the settings and check them as a whole.

    Args:
        environ: Environment to check for unknown names; default the process's own.
        overrides: Values from the command line, by field name.

    Raises:
        SettingsError: With every problem in one message.
    """
    environ = os.environ if environ is None else environ
    known = known_env_names()
    problems = [
        f"{name}: there is no such setting"
        for name in sorted(environ)
        if name.startswith(ENV_PREFIX)
        and name.upper() not in known
        and not IGNORED_ENV.fullmatch(name)
    ]
    settings: Settings | None = None
    try:
        settings = Settings(**overrides)  # type: ignore[arg-type]  # pydantic checks them
    except ValidationError as error:
        problems += [_sentence(e["loc"], e["msg"]) for e in error.errors(include_input=False)]
    except ValueError as error:  # pydantic-settings: a section's JSON does not parse
        problems.append(str(error))
    if settings is not None:
        problems += contradictions(settings)
    if problems or settings is None:
        raise SettingsError("cannot start with these settings:\n  " + "\n  ".join(problems))
    return settings


def _sentence(location: tuple[int | str, ...], message: str) -> str:
    name = ENV_PREFIX + "__".join(str(part) for part in location).upper()
    return f"{name}: {message}"


def contradictions(settings: Settings) -> list[str]:
    """Return a sentence for every pair of settings that cannot both hold."""
    found = []
    limits, store = settings.limits, settings.store
    if store.nbytes is not None and limits.feature_bytes > store.nbytes:
        found.append(
            f"MMPREP_LIMITS__FEATURE_BYTES: {limits.feature_bytes} exceeds the store's "
            f"{store.nbytes} bytes (MMPREP_STORE__NBYTES); no such feature could be stored"
        )
    if limits.body_bytes > settings.admission.body_bytes:
        found.append(
            "MMPREP_LIMITS__BODY_BYTES: exceeds MMPREP_ADMISSION__BODY_BYTES; no such body "
            "could ever be admitted"
        )
    if settings.transport.cuda_ipc and not (settings.server.uds or settings.server.api_keys):
        found.append(
            "MMPREP_TRANSPORT__CUDA_IPC: needs a unix socket (MMPREP_SERVER__UDS) or API keys "
            "(MMPREP_SERVER__API_KEYS)"
        )
    return found


def describe(settings: Settings) -> str:
    """Return the effective settings as indented JSON, secrets masked."""
    return json.dumps(settings.model_dump(mode="json"), indent=2)
