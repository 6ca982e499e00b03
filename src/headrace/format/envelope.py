"""Documents in the object store that say what they are and carry a checksum.

``{"headrace": <kind>, "version": <format>, "sha256": …, "content": …}``; the checksum is that of the content's bytes as
they stand.
"""

from __future__ import annotations

import hashlib

import msgspec

from headrace import decoding
from headrace.errors import CorruptData


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    headrace: str
    version: int
    sha256: str
    content: msgspec.Raw


def enclose(kind: str, version: int, content: bytes) -> bytes:
    """Content in its envelope; equal contents have equal bytes."""
    return msgspec.json.encode(_Envelope(kind, version, hashlib.sha256(content).hexdigest(), msgspec.Raw(content)))


def open_envelope(data: bytes, key: str, kind: str, newest: int) -> bytes:
    """The content of the object of a key; raises CorruptData, naming it, for what is damaged or newer."""
    try:
        envelope = decoding.decode(data, _Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError) as reason:
        raise corrupt(key, "document", str(reason)) from reason
    if envelope.headrace != kind or not 1 <= envelope.version <= newest:
        raise corrupt(key, "version", f"it holds no {kind} of a format up to {newest}")
    if hashlib.sha256(envelope.content).hexdigest() != envelope.sha256:
        raise corrupt(key, "checksum", "its checksum differs")
    return bytes(envelope.content)


def corrupt(key: str, check: str, what: str) -> CorruptData:
    """The error for a damaged object: ``check`` names the check that failed, ``what`` says what it found."""
    return CorruptData(f"{key} is damaged: {what}", object=key, check=check)
