"""What the commands of `mmprep` do."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import resource
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson
import structlog

from app import heap
from app.answer import binary_parts, json_parts
from app.catalog import ServedModel
from app.cli import read_request
from app.config import Settings, describe, load_settings
from app.errors import CodedError, ItemErrors
from app.house import House, open_house, store_sizes
from app.logging import configure
from app.media import Uploads
from app.routes import models as models_route
from app.schemas import PreprocessRequest
from app.server import bind, make_server
from app.staging import StagedMedia
from app.streaming import Part
from app.timing import Timings
from app.wire import parse
from processors.demo import demo_image_path
from processors.errors import MmprepError
from processors.types import Modality
from transport.errors import TransportError

MIN_OPEN_FILES = 4096
UPLOAD_LIMIT = 1 << 30
SWITCH_INTERVAL_S = 0.001
COLLECT_EVERY = 10_000
"""New objects after which cyclic garbage is looked for; a request makes some hundreds, few of them
in cycles."""


class CommandError(Exception):
    """Raised when a command cannot do what it was asked; its text is for the operator."""


def settings_from(arguments: argparse.Namespace) -> Settings:
    """Return the settings of a command: the environment's, the command line on top.

    Raises:
        SettingsError: With every problem in one message.
    """
    overrides: dict[str, Any] = {}
    if arguments.models:
        overrides["models"] = tuple(arguments.models)
    base = load_settings()
    if arguments.mm_process_config is not None:
        overrides["model"] = base.model.model_copy(
            update={"mm_process_config": arguments.mm_process_config}
        )
    server = {
        name: value
        for name in ("host", "port", "uds")
        if (value := getattr(arguments, name, None)) is not None
    }
    if server:
        overrides["server"] = base.server.model_copy(update=server)
    return load_settings(**overrides) if overrides else base


def serve(settings: Settings, arguments: argparse.Namespace) -> int:
    """Serve until a signal; 0 after a drain."""
    del arguments
    from app.main import create_app

    heap.tune()
    configure(settings.telemetry.log_level, settings.telemetry.log_format)
    store_sizes(settings.store)
    structlog.get_logger("mmprep").info("settings", settings=settings.model_dump(mode="json"))
    try:
        sockets = bind(settings.server)
    except OSError as error:
        raise CommandError(
            f"cannot listen on {settings.server.host}:{settings.server.port}: {error.strerror}"
        ) from error
    app = create_app(settings)
    # Threads hand the interpreter back to the event loop five times sooner than by default.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    print("mmprep is loading its models into worker processes ...", flush=True)
    server = make_server(app, settings.server)
    host, port = sockets[-1].getsockname()[:2]

    def on_started() -> None:
        # What stands now stays: the collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(COLLECT_EVERY, *gc.get_threshold()[1:])
        _greet(app.state.house, host, port)

    server.on_started = on_started
    # What stops the start is told once, in one line, not as a traceback of the server's.
    logging.getLogger("uvicorn.error").addFilter(lambda _: app.state.start_error is None)
    try:
        server.run(sockets)
    except SystemExit as error:
        # uvicorn leaves this way when the application did not start.
        if app.state.start_error is None:
            raise CommandError("could not start; the reason stands above") from error
    if app.state.start_error is not None:
        raise CommandError(str(app.state.start_error))
    if not server.started:
        raise CommandError("could not start; the reason stands above")
    return 0


def _greet(house: House, host: str, port: int) -> None:
    model = house.catalog.models[0]
    base = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    prompt = _example_prompt(model)
    request = json.dumps({"prompt": prompt, "images": [{"upload": "image"}]})
    print(f"mmprep is ready at {base}", flush=True)
    if Modality.IMAGE in model.info.modalities and prompt:
        print(
            "Try it with any image of yours:\n\n"
            f"  curl -s {base}/preprocess \\\n"
            f"    -F 'request={request}' \\\n"
            f"    -F image=@{demo_image_path()} | head -c 1500\n",
            flush=True,
        )


def _example_prompt(model: ServedModel) -> str:
    spec = model.info.placeholders.get(Modality.IMAGE)
    if spec is None:
        return ""
    framed = {"<|image_pad|>": "<|vision_start|><|image_pad|><|vision_end|>"}
    return framed.get(spec.text, spec.text) + "What is in this image?"


def plan(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print the plan of one request: no pixels are decoded."""
    body, _ = asyncio.run(_one(settings, arguments, transport="none", binary=False))
    sys.stdout.write(body.decode() + "\n")
    return 0


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Preprocess one request; the document goes to a file, or the JSON to standard output."""
    binary = arguments.output is not None
    body, told = asyncio.run(_one(settings, arguments, transport="safetensors", binary=binary))
    if binary:
        Path(arguments.output).write_bytes(body)
        print(f"wrote {len(body)} bytes with {told} item(s) to {arguments.output}")
    else:
        sys.stdout.write(body.decode() + "\n")
    return 0


async def _one(
    settings: Settings, arguments: argparse.Namespace, *, transport: str, binary: bool
) -> tuple[bytes, int]:
    try:
        request, files = read_request(arguments)
        contents = {name: path.read_bytes() for name, path in files.items()}
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot read the request: {error}") from error
    configure("warning", "console")
    async with open_house(settings) as house:
        try:
            wire = parse(PreprocessRequest, orjson.dumps({**request, "transport": transport}))
            uploads = Uploads({n: await _stage(house, data) for n, data in contents.items()})
            try:
                return await _answer(house, wire, uploads, binary=binary)
            finally:
                uploads.release()
        except ItemErrors as error:
            raise CommandError(_told(error.errors)) from error
        except (MmprepError, TransportError) as error:
            raise CommandError(_told([error])) from error


async def _stage(house: House, data: bytes) -> StagedMedia:
    with house.staging.buffer(expected_bytes=len(data), max_bytes=UPLOAD_LIMIT) as buffer:
        await buffer.append(data)
        return await buffer.finish()


async def _answer(
    house: House, wire: PreprocessRequest, uploads: Uploads, *, binary: bool
) -> tuple[bytes, int]:
    now = asyncio.get_running_loop().time()
    request_id = wire.request_id or "cli"
    call = house.pipeline.open(wire, request_id, now, Timings(), key_id="", base_url="")
    answer = await house.pipeline.run(call, uploads)
    try:
        limit = house.settings.limits.inline_bytes
        parts: list[Part] = (
            binary_parts(answer, house.store) if binary else json_parts(answer, house.store, limit)
        )
        joined = b"".join(p if isinstance(p, bytes | memoryview) else p[1]() for p in parts)
        return joined, len(answer.items)
    finally:
        answer.close(complete=True)


def _told(errors: list[CodedError]) -> str:
    return "\n  ".join(f"{e.code}: {e.param + ': ' if e.param else ''}{e.message}" for e in errors)


def models(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print what GET /models would answer."""
    del arguments

    async def describe_all() -> bytes:
        async with open_house(settings) as house:
            return orjson.dumps(models_route.describe(house), option=orjson.OPT_INDENT_2)

    configure("warning", "console")
    sys.stdout.write(asyncio.run(describe_all()).decode() + "\n")
    return 0


def doctor(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print effective settings and check the machine; 2 where the service could not start."""
    del arguments
    print(describe(settings))
    nbytes, staging = store_sizes(settings.store)
    free = shutil.disk_usage(settings.store.directory).free
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    lines = [
        f"shared memory: {free} bytes free, {nbytes} for the store, {staging} for staging",
        f"open files: {files}"
        + ("" if files >= MIN_OPEN_FILES else f" (raise to {MIN_OPEN_FILES})"),
        f"transformers {metadata.version('transformers')}, torch {metadata.version('torch')}",
    ]
    if settings.loading.proxy is not None:
        lines.append(
            "loading.proxy is set: the proxy resolves host names itself, so addresses are not "
            "checked; forbid private networks there"
        )
    print("\n".join(lines))
    return 0
