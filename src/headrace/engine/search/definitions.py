"""Definitions by revision: read once, and shared by the threads that ask."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from headrace.query.definition import Definition
from headrace.schema.registry import Registry
from headrace.storage.registries import Registries
from headrace.storage.streams import StreamRow

_KEPT = 512


class Hashes(NamedTuple):
    """What a companion must hold to be up to date: field → hash, rollup → hash."""

    fields: dict[str, str]
    rollups: dict[str, str]


class Defined:
    """What a revision of a registry says is to be derived."""

    def __init__(self, registry: Registry, definition: Definition) -> None:
        self.registry = registry
        self.definition = definition
        self._hashes: dict[int, Hashes] = {}

    def hashes(self, through_version: int) -> Hashes:
        """Of everything that is defined, for events of versions up to this one."""
        hashes = self._hashes.get(through_version)
        if hashes is None:
            definition, search = self.definition, self.definition.search
            hashes = self._hashes[through_version] = Hashes(
                {name: definition.field_hash(name, through_version) for name in search.fields},
                {name: definition.rollup_hash(name, through_version) for name in search.rollups},
            )
        return hashes


class Definitions:
    """A bounded cache over the stored registries."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, int], Defined | None] = OrderedDict()

    def stored(self, registries: Registries, row: StreamRow) -> Defined | None:
        """What the newest revision in the database says; None where a stream has no search configuration."""

        def load() -> Registry:
            return Registry.load(msgspec.json.decode(registries.document(row.id, row.revision)))

        return self.of(row.id, row.revision, load) if row.revision else None

    def of(self, stream: int, revision: int, load: Callable[[], Registry]) -> Defined | None:
        """What a revision says, which is loaded where it is not known yet."""
        mark = stream, revision
        with self._lock:
            if mark in self._kept:
                self._kept.move_to_end(mark)
                return self._kept[mark]
        registry = load()
        definition = Definition.of(registry)
        defined = None if definition is None else Defined(registry, definition)
        with self._lock:
            self._kept[mark] = defined
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return defined
