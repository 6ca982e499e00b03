"""The feature registry in the object store: one numbered object per version, created once.

Format version 1. An object is a JSON document, ``{"headrace": "features", "version": 1, "sha256": …, "content": …}``,
where the checksum is that of the content's bytes as they stand. Its key is ``features/registry-<12 digits>.json``, by
the version of the registry that it holds. The newest one counts; older ones are its history.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from headrace.errors import CorruptData

VERSION = 1
FEATURES = "features"
_KEY = re.compile(rf"{FEATURES}/registry-(\d{{12}})\.json")


class Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One version of the registry: who made it, when, for which app, and the document."""

    version: int
    at_us: int
    who: str
    app: str
    document: msgspec.Raw


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    headrace: str
    version: int
    sha256: str
    content: msgspec.Raw


def key(version: int) -> str:
    """The key of a version."""
    return f"{FEATURES}/registry-{version:012}.json"


def version_of(key: str) -> int | None:
    """The version that a key stands for; None for another key."""
    match = _KEY.fullmatch(key)
    return None if match is None else int(match[1])


def encode(stored: Stored) -> bytes:
    """A version as an object; equal versions have equal bytes."""
    content = msgspec.json.encode(stored)
    digest = hashlib.sha256(content).hexdigest()
    return msgspec.json.encode(_Envelope(FEATURES, VERSION, digest, msgspec.Raw(content)))


def decode(data: bytes, key_: str) -> Stored:
    """Read the object of a key; raises CorruptData, naming it, for what is damaged, misplaced or newer."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if envelope.headrace != FEATURES or not 1 <= envelope.version <= VERSION:
            raise _corrupt(key_, "version", f"it is no feature registry of a format up to {VERSION}")
        if hashlib.sha256(envelope.content).hexdigest() != envelope.sha256:
            raise _corrupt(key_, "checksum", "its checksum differs")
        stored = msgspec.json.decode(envelope.content, type=Stored)
    except (msgspec.DecodeError, UnicodeDecodeError) as reason:
        raise _corrupt(key_, "document", str(reason)) from reason
    if key(stored.version) != key_:
        raise _corrupt(key_, "identity", "it belongs under another key")
    return stored


def _corrupt(key_: str, check: str, what: str) -> CorruptData:
    return CorruptData(f"{key_} is damaged: {what}", object=key_, check=check)
