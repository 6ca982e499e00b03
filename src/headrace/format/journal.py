"""Journals in the object store: numbered records, in objects that are created once.

Format version 1. An object is a JSON document in an envelope. Its key is ``features/registry-<12 digits>.json`` or
``entities/changes-<12 digits>.json``, by the number of the first record in it. One of features holds one version of the
registry, and the newest one counts; one of entities holds a list of changes with numbers that follow each other, and
where two objects hold the same number they say the same.
"""

from __future__ import annotations

import re
from typing import Any, Generic, TypeVar

import msgspec

from headrace import decoding
from headrace.format.identity import corrupt, enclose, open_envelope

VERSION = 1


class StoredVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One version of the feature registry: who made it, when, for which app, and the document."""

    version: int
    at_us: int
    who: str
    app: str
    document: msgspec.Raw


class StoredChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One change of an entity type: of whose schema, when, by whom, and the document."""

    number: int
    entity_type: str
    user_id: str
    at_us: int
    who: str
    document: msgspec.Raw


#: A record: its first field is its number.
Record = TypeVar("Record", bound=msgspec.Struct)


class JournalFormat(Generic[Record]):
    """The objects of one journal."""

    def __init__(self, prefix: str, noun: str, record_type: type[Record], *, max_records: int) -> None:
        self.prefix, self.record_type, self.max_records = prefix, record_type, max_records
        self._stem = f"{prefix}/{noun}-"
        self._key = re.compile(rf"{self._stem}(\d{{12}})\.json")

    def key(self, number: int) -> str:
        """The key of the object whose first record has this number."""
        return f"{self._stem}{number:012}.json"

    def number_of(self, key: str) -> int | None:
        """The number of the first record of an object, by its key; None for another key."""
        match = self._key.fullmatch(key)
        return None if match is None else int(match[1])

    def encode(self, records: list[Record]) -> bytes:
        """Consecutive records as an object; equal ones have equal bytes."""
        content = records if self.max_records > 1 else records[0]
        return enclose(self.prefix, VERSION, msgspec.json.encode(content))

    def decode(self, data: bytes, key: str) -> list[Record]:
        """The records of an object; raises CorruptData, naming its key, for what is damaged, misplaced or newer."""
        content_type: Any = list[self.record_type] if self.max_records > 1 else self.record_type  # type: ignore[name-defined]
        try:
            content = decoding.decode(open_envelope(data, key, self.prefix, VERSION), content_type)
        except (msgspec.DecodeError, UnicodeDecodeError) as reason:
            raise corrupt(key, "document", str(reason)) from reason
        records: list[Record] = content if self.max_records > 1 else [content]
        numbers = [msgspec.structs.astuple(record)[0] for record in records]
        if not numbers or self.key(numbers[0]) != key or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise corrupt(key, "identity", "it belongs under another key")
        return records


FEATURES = JournalFormat("features", "registry", StoredVersion, max_records=1)
ENTITIES = JournalFormat("entities", "changes", StoredChange, max_records=500)
