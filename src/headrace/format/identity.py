"""The identity that objects in the store carry: their format and its version.

A Parquet file carries a JSON document in its metadata, with the version of its format. A JSON object is an envelope
``{"headrace": <kind>, "version": <format>, "sha256": …, "content": …}``; the checksum is that of the content's bytes as
they stand.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

from headrace import decoding
from headrace.errors import CorruptData

Info = TypeVar("Info")


class _Marked(msgspec.Struct):
    version: int


def decode_identity(document: bytes | None, type: type[Info], *, name: str, kind: str, newest: int) -> Info:
    """Read the document of a file of a kind; refuses what is damaged and what a newer Headrace wrote."""
    if document is None:
        raise CorruptData(f"{name} is Parquet but no {kind}", object=name, check="identity")
    try:
        version = decoding.decode(document, _Marked).version
        if version > newest:
            raise CorruptData(
                f"{name} has {kind} format {version}, this Headrace knows {newest}: install a newer one",
                object=name,
                check="version",
            )
        return decoding.decode(document, type)
    except msgspec.DecodeError as reason:
        raise CorruptData(f"{name} has a damaged identity: {reason}", object=name, check="identity") from reason


class Envelope(msgspec.Struct, forbid_unknown_fields=True):
    """A document with its type, its version and a checksum."""

    headrace: str
    version: int
    sha256: str
    content: msgspec.Raw


def enclose(kind: str, version: int, content: bytes) -> bytes:
    """Content in its envelope; equal contents have equal bytes."""
    return msgspec.json.encode(Envelope(kind, version, hashlib.sha256(content).hexdigest(), msgspec.Raw(content)))


def open_envelope(data: bytes, key: str, kind: str, newest: int) -> bytes:
    """The content of the object of a key; raises CorruptData, naming it, for what is damaged or newer."""
    try:
        envelope = decoding.decode(data, Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError) as reason:
        raise corrupt(key, "document", str(reason)) from reason
    if envelope.headrace != kind or not 1 <= envelope.version <= newest:
        raise corrupt(key, "version", f"it holds no {kind} of a format up to {newest}")
    check_content(envelope, key)
    return bytes(envelope.content)


def check_content(envelope: Envelope, key: str) -> None:
    """Raise CorruptData, naming the object, where the content is not what was enclosed."""
    if hashlib.sha256(envelope.content).hexdigest() != envelope.sha256:
        raise corrupt(key, "checksum", "its checksum differs")


def corrupt(key: str, check: str, what: str) -> CorruptData:
    """The error for a damaged object: ``check`` names the check that failed, ``what`` says what it found."""
    return CorruptData(f"{key} is damaged: {what}", object=key, check=check)
