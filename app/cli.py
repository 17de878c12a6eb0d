"""The `mmprep` command: serve | plan | run | models | doctor."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

BAD_SETTINGS = 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mmprep",
        description="Multimodal preprocessing for LLM engines.",
        epilog="Every setting is an environment variable MMPREP_*; see docs/configuration.md.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="start the service")
    serve.add_argument("--host")
    serve.add_argument("--port", type=int)
    serve.add_argument("--uds", help="unix socket to serve beside TCP")
    for name, text in (
        ("plan", "print the plan of one request: ids, offsets, shapes; no pixels"),
        ("run", "preprocess one request and write its answer"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--request", help="JSON file with the request ('-': standard input)")
        command.add_argument("--prompt", help="prompt with one placeholder per item")
        for kind in ("image", "video", "audio"):
            command.add_argument(f"--{kind}", action="append", default=[], metavar="FILE")
        if name == "run":
            command.add_argument("--output", help="write the safetensors document here")
    models = commands.add_parser("models", help="print what GET /models would say")
    doctor = commands.add_parser("doctor", help="print effective settings and check the machine")
    for command in commands.choices.values():
        command.add_argument(
            "models", nargs="*", metavar="MODEL", help="DIRECTORY or NAME=DIRECTORY"
        )
        command.add_argument("--mm-process-config", type=_json_object, help="default kwargs, JSON")
    del models, doctor
    return parser


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError("is not JSON") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("is not a JSON object")
    return value


def _fail(message: str) -> NoReturn:
    print(f"mmprep: {message}", file=sys.stderr)
    raise SystemExit(BAD_SETTINGS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 0, or 2 with one clear message."""
    arguments = _parser().parse_args(argv)
    # Imported late, so that `mmprep --help` needs no server packages.
    try:
        from app import commands
    except ImportError as error:
        _fail(f"the server's packages are missing ({error.name}); pip install 'mmprep[server]'")
    from app.config import SettingsError

    try:
        settings = commands.settings_from(arguments)
        result: int = getattr(commands, arguments.command)(settings, arguments)
    except (SettingsError, commands.CommandError) as error:
        _fail(str(error))
    return result


def read_request(arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the request of `plan` or `run` and the files it uploads, by part name.

    Raises:
        OSError: If the request file cannot be read.
        ValueError: If it is not a JSON object.
    """
    request: dict[str, Any] = {}
    if arguments.request is not None:
        text = sys.stdin.read() if arguments.request == "-" else Path(arguments.request).read_text()
        request = json.loads(text)
        if not isinstance(request, dict):
            raise ValueError("the request is not a JSON object")
    if arguments.prompt is not None:
        request["prompt"] = arguments.prompt
    files: dict[str, Path] = {}
    for kind in ("image", "video", "audio"):
        for number, path in enumerate(getattr(arguments, kind)):
            files[f"{kind}-{number}"] = Path(path)
            request.setdefault(f"{kind}s", []).append({"upload": f"{kind}-{number}"})
    return request, files


if __name__ == "__main__":
    raise SystemExit(main())
