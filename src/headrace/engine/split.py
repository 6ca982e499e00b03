"""Splitting a JSON body into entries without building objects."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from headrace.errors import BadRequest
from headrace.types import Piece

_ENTRIES = msgspec.json.Decoder(list[msgspec.Raw])
_ONE = msgspec.json.Decoder(msgspec.Raw)
_SPACE = b" \t\r\n"
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{},]')


def split_json(body: bytes) -> tuple[bytes, int]:
    """The entries of an append, joined by commas as they were spelled, and how many there are.

    An array is flattened one level; any other value is one entry.
    """
    try:
        if not body.isascii():
            body.decode()  # the decoder does not look into strings
        if body[:1] == b"[" or body.lstrip(_SPACE)[:1] == b"[":
            count = len(_ENTRIES.decode(body))
            if body[:1] != b"[" or body[-1:] != b"]":
                body = body.strip(_SPACE)
            return (body[1:-1], count) if count else (b"", 0)
        _ONE.decode(body)
        return body.strip(_SPACE), 1
    except UnicodeDecodeError as reason:
        raise BadRequest(f"the body is not UTF-8: byte {reason.start}", field="body") from reason
    except RecursionError as reason:
        raise BadRequest("the JSON is nested too deeply", field="body") from reason
    except msgspec.DecodeError as reason:
        raise BadRequest(f"the body is not JSON: {reason}", field="body") from reason


def entries_of(joined: Piece) -> list[bytes] | list[msgspec.Raw]:
    """The entries of a stored JSON body, one by one."""
    try:
        return _ENTRIES.decode(b"[" + joined + b"]")
    except RecursionError:
        # How deep the decoder goes depends on who calls it, and what was taken must be read back.
        return list(_split_slowly(bytes(joined)))


def _split_slowly(joined: bytes) -> Iterator[bytes]:
    """The same for valid JSON of any depth: cut at the commas outside brackets and strings."""
    start = depth = 0
    for token in _TOKEN.finditer(joined):
        mark = token[0]
        if mark in b"[{":
            depth += 1
        elif mark in b"]}":
            depth -= 1
        elif mark == b"," and not depth:
            yield joined[start : token.start()].strip(_SPACE)
            start = token.end()
    yield joined[start:].strip(_SPACE)


def slice_json(joined: bytes, start: int, stop: int) -> bytes:
    """Entries ``start`` to ``stop`` of a stored JSON body, joined by commas."""
    return b",".join(entries_of(joined)[start:stop])
