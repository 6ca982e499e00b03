"""A consistent version of the rows of one definition: states up to an event, and events after it folded in memory.

A generation is replaced as a whole, so no answer mixes two of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

from headrace.errors import CorruptData
from headrace.format.decoded_columns import LruCache
from headrace.format.state import State
from headrace.format.state_file import PackedColumns
from headrace.reduce.states.coverage import Base, Chain, merge_row
from headrace.reduce.states.definition import Definition
from headrace.reduce.states.fold import ROW_OVERHEAD, SPREAD, Fold
from headrace.schema.descriptor.nodes import FeatureVersion
from headrace.storage.state_files import StateFile

#: How many rows of a tail are kept unpacked by default; the others are packed.
HOT_ROWS = 4096

_numbers = count()
_UNSEEN: Any = object()


class NotReady(Exception):
    """The rows are not in memory yet: wait for `StateReader.ready`, then retry."""


class Generation:
    """The rows of one definition; once it answers requests, only the event loop may use it."""

    def __init__(
        self,
        defined: Definition,
        base: Base,
        files: Mapping[str, StateFile],
        rows: LruCache,
        fold: Fold | None = None,
        hot_rows: int = HOT_ROWS,
    ) -> None:
        self.defined, self.base = defined, base
        self.files = dict(files)
        #: A file that is damaged: this generation must not be read any more.
        self.damaged: StateFile | None = None
        self.fold = Fold(defined, hot_rows) if fold is None else fold
        #: The next event to fold.
        self.position = base.start
        #: Names of which events are in no state, and were not retained until they were folded.
        self.lost = base.lost
        self._rows = rows
        #: No other definition, base or generation has the same.
        self.number = next(_numbers)
        self._version_ids = {name: version.id for name, version in defined.lives.items()}

    def add(self, seq: int, at: int, event: Any) -> None:
        """Fold an event, unless it was folded before."""
        if seq >= self.position:
            self.fold.add(seq, at, event)
            self.position = seq + 1

    def go_on_from(self, first_seq: int) -> None:
        """Leave out the events before the first that is retained, where some of them are not folded yet."""
        if self.position < first_seq:
            self.position = first_seq
            self.lost |= {name for name, version in self.defined.lives.items() if version.birth < first_seq}

    def add_rows(self, rows: PackedColumns, end: int) -> None:
        """Fold all events up to a position that were not folded before, given the rows that came of them."""
        self.fold.add_rows(rows)
        self.position = end

    def row(self, key: bytes) -> Any:
        """The row of a key, None where the key has no events; callers must not change it.

        Raises NotReady where a file is damaged: `StateReader.ready` then fetches it again.
        """
        return self.with_tail(key, self.fold.row(key))

    def with_tail(self, key: bytes, after: Any) -> Any:
        """The row of a key: what its states hold, merged with the row of the tail."""
        before = self._stored_row(key)
        if before is None or after is None:
            return after if before is None else before
        return self.fold.reducer.merge(before, after)

    def is_folded(self, name: str, version_id: str) -> bool:
        """Whether this is the current version of a name, with all its events in states or folded."""
        version = self.defined.lives.get(name)
        return version is not None and version.id == version_id and name not in self.base.backfilling

    def is_replaced(self, name: str, version: FeatureVersion) -> bool:
        """Whether this has the version of a name that another replaces, with all its events."""
        return version.replaces is not None and self.is_folded(name, version.replaces.id)

    def answers_more_than(self, defined: Definition, base: Base) -> bool:
        """Whether this generation has all events of a name that another base would have to backfill."""
        versions = defined.lives
        return any(
            self.is_folded(name, versions[name].id) or self.is_replaced(name, versions[name])
            for name in base.backfilling
        )

    def has_all_keys(self, since: int) -> bool:
        """Whether there is a row for every key with an event since then: some version has all of these events."""
        versions = self.defined.lives
        return any(versions[name].birth <= since for name in versions.keys() - self.base.backfilling)

    def successor(self, defined: Definition, base: Base, files: Mapping[str, StateFile]) -> Generation:
        """The next generation, which takes over the tail; this generation must not be used afterwards."""
        fold = self.fold if defined == self.defined else self.fold.adopted(defined)
        generation = Generation(defined, base, files, self._rows, fold)
        generation.position = self.position
        generation.lost |= self.lost & defined.lives.keys()
        return generation

    def _with_replaced(self, defined: Definition) -> Definition:
        """A definition with the versions of this generation that others replace: they answer until those are folded."""
        replaced = {
            name: FeatureVersion(version.replaces.id, version.birth, version.replaces.end)
            for name, version in defined.lives.items()
            if version.replaces is not None and self.is_replaced(name, version)
        }
        return defined.with_versions(replaced) if replaced else defined

    def redefine(self, defined: Definition) -> None:
        """Fold later events by a new definition: drop versions that have ended, add those that start later."""
        defined = self._with_replaced(defined)
        held = {name: version.id for name, version in self.defined.lives.items()}
        kept = {name for name, version in defined.lives.items() if held.get(name) == version.id}
        later = {name for name, version in defined.lives.items() if name not in kept and version.birth >= self.position}
        restricted = defined.restricted(kept | later)
        if restricted == self.defined:
            return
        if later and len(later) == len(defined.lives):
            # Rows of another key, or of other steps, belong to none of these versions.
            self.position = restricted.start_seq
            self.base = Base(restricted.start_seq, (Chain(tuple(sorted(later)), ()),), frozenset())
            self.lost = frozenset()
            self.fold = self.fold.emptied(restricted)
        else:
            self.base = self.base.carried_on(kept, later)
            self.lost &= kept
            self.fold = self.fold.adopted(restricted)
        self.defined = restricted
        self._version_ids = {name: version.id for name, version in restricted.lives.items()}
        self.number = next(_numbers)

    def _stored_row(self, key: bytes) -> Any:
        """The row of a key from states, cached."""
        if not self.files:
            return None
        cache_key = self.number, key
        cached = self._rows.get(cache_key)
        if cached is None:
            packed: dict[str, dict[str, bytes] | None] = {}

            def find(state: State) -> dict[str, bytes] | None:
                if state.name not in packed:
                    packed[state.name] = self._read_state(state, key)
                return packed[state.name]

            row = merge_row(self.fold.reducer, self._version_ids, self.base.chains, find)
            size = sum(len(part) for parts in packed.values() if parts for part in parts.values())
            self._rows.put(cache_key, _UNSEEN if row is None else row, size * SPREAD + ROW_OVERHEAD)
            return row
        return None if cached is _UNSEEN else cached

    def _read_state(self, state: State, key: bytes) -> dict[str, bytes] | None:
        file = self.files[state.name]
        try:
            return file.get(key)
        except CorruptData as reason:
            self.damaged = file
            raise NotReady from reason


def can_inherit(old: Generation, defined: Definition, base: Base) -> bool:
    """Whether the tail of a generation can be used for another definition and base: no version lacks an event of it."""
    old_ids = {version.id for version in old.defined.lives.values()}
    return base.start == old.base.start and all(
        version.id in old_ids or version.birth >= old.position for version in defined.lives.values()
    )
