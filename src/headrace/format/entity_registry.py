"""The journal of entity types in the object store: runs of changes, each object created once.

Format version 1. An object is a JSON document in an envelope, whose content is a list of changes with numbers that
follow each other. Its key is ``entities/changes-<12 digits>.json``, by the number of the first of them. Where two
objects hold the same number they say the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from headrace import decoding
from headrace.format.identity import corrupt, enclose, open_envelope

VERSION = 1
ENTITIES = "entities"
_KEY = re.compile(rf"{ENTITIES}/changes-(\d{{12}})\.json")


class StoredChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One change: of which type, of whose schema, when, by whom, and what it was."""

    number: int
    entity_type: str
    user_id: str
    at_us: int
    who: str
    document: msgspec.Raw


def key(number: int) -> str:
    """The key of the object whose first change has this number."""
    return f"{ENTITIES}/changes-{number:012}.json"


def number_of(key: str) -> int | None:
    """The number of the first change that a key stands for; None for another key."""
    match = _KEY.fullmatch(key)
    return None if match is None else int(match[1])


def encode(changes: list[StoredChange]) -> bytes:
    """A run of changes as an object; equal ones have equal bytes."""
    return enclose(ENTITIES, VERSION, msgspec.json.encode(changes))


def decode(data: bytes, key_: str) -> list[StoredChange]:
    """Read the object of a key; raises CorruptData, naming it, for what is damaged, misplaced or newer."""
    try:
        changes = decoding.decode(open_envelope(data, key_, ENTITIES, VERSION), list[StoredChange])
    except (msgspec.DecodeError, UnicodeDecodeError) as reason:
        raise corrupt(key_, "document", str(reason)) from reason
    numbers = [change.number for change in changes]
    if not changes or key(numbers[0]) != key_ or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise corrupt(key_, "identity", "it belongs under another key")
    return changes


def gaps(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of each run of changes that a journal lacks; ``numbers`` are those it has, ascending."""
    expected = 1
    for number in numbers:
        if number > expected:
            yield expected, number - 1
        expected = number + 1
