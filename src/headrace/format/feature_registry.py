"""The feature registry in the object store: one numbered object per version, created once.

Format version 1. An object is a JSON document in an envelope. Its key is ``features/registry-<12 digits>.json``, by
the version of the registry that it holds. The newest one counts; older ones are its history.
"""

from __future__ import annotations

import re

import msgspec

from headrace import decoding
from headrace.format.identity import corrupt, enclose, open_envelope

VERSION = 1
FEATURES = "features"
_KEY = re.compile(rf"{FEATURES}/registry-(\d{{12}})\.json")


class StoredVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One version of the registry: who made it, when, for which app, and the document."""

    version: int
    at_us: int
    who: str
    app: str
    document: msgspec.Raw


def key(version: int) -> str:
    """The key of a version."""
    return f"{FEATURES}/registry-{version:012}.json"


def version_of(key: str) -> int | None:
    """The version that a key stands for; None for another key."""
    match = _KEY.fullmatch(key)
    return None if match is None else int(match[1])


def encode(stored: StoredVersion) -> bytes:
    """A version as an object; equal versions have equal bytes."""
    return enclose(FEATURES, VERSION, msgspec.json.encode(stored))


def decode(data: bytes, key_: str) -> StoredVersion:
    """Read the object of a key; raises CorruptData, naming it, for what is damaged, misplaced or newer."""
    try:
        stored = decoding.decode(open_envelope(data, key_, FEATURES, VERSION), StoredVersion)
    except (msgspec.DecodeError, UnicodeDecodeError) as reason:
        raise corrupt(key_, "document", str(reason)) from reason
    if key(stored.version) != key_:
        raise corrupt(key_, "identity", "it belongs under another key")
    return stored
