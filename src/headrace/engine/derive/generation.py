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
from headrace.reduce.states.coverage import Base, Chain, merge_row
from headrace.reduce.states.definition import Definition
from headrace.reduce.states.fold import ROW_OVERHEAD, SPREAD, Fold
from headrace.storage.state_files import StateFile

#: Rows of a tail that are kept as they are, where nothing else is said; the others are packed.
HOT_ROWS = 4096

_numbers = count()
_UNSEEN: Any = object()


class NotReady(Exception):
    """The rows are not in memory yet: wait for `StateReader.ready`, then ask again."""


class Generation:
    """The rows of one definition; only the event loop uses it once it answers requests."""

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
        #: A file that turned out to be damaged: this generation answers no more.
        self.damaged: StateFile | None = None
        self.fold = Fold(defined, hot_rows) if fold is None else fold
        #: The next event to fold.
        self.position = base.start
        self._rows = rows
        #: No other definition, base or generation has the same.
        self.number = next(_numbers)
        self._version_ids = {name: life.id for name, life in defined.lives.items()}

    def add(self, seq: int, at: int, event: Any) -> None:
        """Fold an event, unless it was folded before."""
        if seq >= self.position:
            self.fold.add(seq, at, event)
            self.position = seq + 1

    def row(self, key: bytes) -> Any:
        """Everything about a key, None where it was never seen; not to be changed.

        Raises NotReady where a file is damaged: `StateReader.ready` has it made anew.
        """
        return self.with_tail(key, self.fold.row(key))

    def with_tail(self, key: bytes, after: Any) -> Any:
        """The row of a key: what its states hold, merged with the row of the tail."""
        before = self._stored_row(key)
        if before is None or after is None:
            return after if before is None else before
        return self.fold.reducer.merge(before, after)

    def is_folded(self, name: str, life: str) -> bool:
        """Whether a name has this life id, and all its events are in states or folded."""
        held = self.defined.lives.get(name)
        return held is not None and held.id == life and name not in self.base.backfilling

    def answers_more_than(self, defined: Definition, base: Base) -> bool:
        """Whether this generation has a name completely that another base would have to backfill."""
        return any(self.is_folded(name, defined.lives[name].id) for name in base.backfilling)

    def knows_everyone(self, since: int) -> bool:
        """Whether every key that had an event from there on is known: some life has all events since then."""
        versions = self.defined.lives
        return any(versions[name].birth <= since for name in versions.keys() - self.base.backfilling)

    def successor(self, defined: Definition, base: Base, files: Mapping[str, StateFile]) -> Generation:
        """The next generation, which takes over the tail; this generation must not be used afterwards."""
        fold = self.fold if defined == self.defined else self.fold.adopted(defined)
        generation = Generation(defined, base, files, self._rows, fold)
        generation.position = self.position
        return generation

    def carry_on(self, defined: Definition) -> None:
        """Fold what comes as it is defined now: without lives that are over, with those that are yet to begin."""
        versions = self.defined.lives
        kept = {name for name, life in defined.lives.items() if versions.get(name) == life}
        newborn = {name for name, life in defined.lives.items() if name not in kept and life.birth >= self.position}
        restricted = defined.restricted(kept | newborn)
        if restricted == self.defined:
            return
        if newborn and len(newborn) == len(defined.lives):
            # Rows of another key, or of other steps, are none of these lives'.
            self.position = restricted.start_seq
            self.base = Base(restricted.start_seq, (Chain(tuple(sorted(newborn)), ()),), frozenset())
            self.fold = self.fold.emptied(restricted)
        else:
            self.base = self.base.carried_on(kept, newborn)
            self.fold = self.fold.adopted(restricted)
        self.defined = restricted
        self._version_ids = {name: life.id for name, life in restricted.lives.items()}
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
    """Whether the tail of a generation is that of another definition and base: no life lacks any event of it."""
    known_ids = {life.id for life in old.defined.lives.values()}
    return base.start == old.base.start and all(
        life.id in known_ids or life.birth >= old.position for life in defined.lives.values()
    )
