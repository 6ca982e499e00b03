"""Splitting a JSON body into entries without building objects."""

from __future__ import annotations

import msgspec

from headrace.errors import BadRequest
from headrace.schema.entries import entries_of
from headrace.types import json_fault

_ENTRIES = msgspec.json.Decoder(list[msgspec.Raw])
_ONE = msgspec.json.Decoder(msgspec.Raw)
_SPACE = b" \t\r\n"


def split_json(body: bytes) -> tuple[bytes, int]:
    """The entries of an append, joined by commas as they were spelled, and how many there are.

    An array is flattened one level; any other value is one entry.
    """
    try:
        check_text(body)
        if body[:1] == b"{" and body[-1:] == b"}":
            _ONE.decode(body)
            return body, 1
        if body[:1] == b"[" or body.lstrip(_SPACE)[:1] == b"[":
            count = len(_ENTRIES.decode(body))
            if body[:1] != b"[" or body[-1:] != b"]":
                body = body.strip(_SPACE)
            return (body[1:-1], count) if count else (b"", 0)
        _ONE.decode(body)
        return body.strip(_SPACE), 1
    except RecursionError as reason:
        raise BadRequest("the JSON is nested too deeply", field="body") from reason
    except msgspec.DecodeError as reason:
        raise BadRequest(f"the body is not JSON: {json_fault(reason, body)}", field="body") from reason


def slice_json(joined: bytes, start: int, stop: int) -> bytes:
    """Entries ``start`` to ``stop`` of a stored JSON body, joined by commas."""
    return b",".join(entries_of(joined)[start:stop])


def check_text(body: bytes) -> None:
    """Refuse what is not UTF-8: decoders do not look into all strings."""
    try:
        if not body.isascii():
            body.decode()
    except UnicodeDecodeError as reason:
        raise BadRequest(f"the body is not UTF-8: byte {reason.start}", field="body") from reason
