"""The registries of features and of entity types in an object store: no manifest names their objects.

Each object says what it is and carries its own checksum. The feature registry is whole in each of its versions; the
journal of entity types is whole only if no change of it is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.errors import CorruptData
from headrace.format import entity_registry, feature_registry
from headrace.storage.objects import ObjectMissing, Objects


class Journal(NamedTuple):
    """A registry as the store has it: its newest number, how many there are, and what is wrong with it."""

    kind: str
    newest: int
    entries: int
    bytes: int
    damage: list[CorruptData]


def journals(objects: Objects) -> Iterator[Journal]:
    """The registries that a store has."""
    versions = _read(objects, "feature_registry", feature_registry.FEATURES, feature_registry.version_of, _version)
    changes = _read(objects, "entity_changes", entity_registry.ENTITIES, entity_registry.number_of, _changes)
    for found in (versions, changes):
        if found.entries or found.damage:
            yield found


def _read(
    objects: Objects, kind: str, prefix: str, number_of: Callable[[str], int | None], held: Callable[..., list[int]]
) -> Journal:
    numbers, size, damage = set[int](), 0, list[CorruptData]()
    for info in objects.list(prefix):
        if number_of(info.key) is None:
            continue
        size += info.bytes
        try:
            numbers.update(held(objects.get(info.key), info.key))
        except ObjectMissing:
            pass  # swept since; what must not be swept is missed below
        except CorruptData as reason:
            damage.append(reason)
    if held is _changes:
        damage += map(_missing, entity_registry.gaps(sorted(numbers)))
    return Journal(kind, max(numbers, default=0), len(numbers), size, damage)


def _missing(run: tuple[int, int]) -> CorruptData:
    key = entity_registry.key(run[0])
    return ObjectMissing(f"the object {key} is missing, with changes up to {run[1]}", object=key, check="present")


def _version(data: bytes, key: str) -> list[int]:
    return [feature_registry.decode(data, key).version]


def _changes(data: bytes, key: str) -> list[int]:
    return [change.number for change in entity_registry.decode(data, key)]
