"""Documents in files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.cli.output import UsageError


def document(file: Path) -> Any:
    """The JSON value that a file holds."""
    try:
        return msgspec.json.decode(content(file))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
        raise UsageError(f"{file} is not JSON: {reason}") from reason


def rows(file: Path) -> Iterator[Any]:
    """The JSON values of a file: the items of its array, else one on each line that is not blank."""
    text = content(file)
    if text.lstrip()[:1] == b"[":
        yield from document(file)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
                raise UsageError(f"line {number} of {file} is not JSON: {reason}") from reason


def content(file: Path) -> bytes:
    """The bytes of a file."""
    try:
        return file.read_bytes()
    except OSError as reason:
        raise UsageError(f"{file} cannot be read: {reason.strerror}") from reason
