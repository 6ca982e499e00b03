"""What answers for one definition: its states up to an event, and the fold of the events from there on.

A generation is replaced whole, so that no answer mixes two.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

from headrace.errors import CorruptData
from headrace.format.segment.decoded import DecodedCache
from headrace.format.state.layout import State
from headrace.reduce.states.coverage import Base, Chain, merge_row
from headrace.reduce.states.definition import Definition
from headrace.reduce.states.fold import ROW_OVERHEAD, SPREAD, Fold
from headrace.storage.state_files import StateFile

#: Rows of a tail that are kept as they are, where nothing else is said; the others are packed.
HOT_ROWS = 4096

_numbers = count()
_UNSEEN: Any = object()


class NotReady(Exception):
    """The answer is not at hand: wait for `StateReader.ready`, then ask again."""


class Generation:
    """One definition at one time; the event loop owns it once it answers."""

    def __init__(
        self,
        defined: Definition,
        base: Base,
        files: Mapping[str, StateFile],
        rows: DecodedCache,
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
        self._lives = {name: life.id for name, life in defined.lives.items()}

    def add(self, seq: int, at: int, event: Any) -> None:
        """Fold an event, unless it was."""
        if seq >= self.position:
            self.fold.add(seq, at, event)
            self.position = seq + 1

    def row(self, key: bytes) -> Any:
        """Everything about a key, None where it was never seen; not to be changed.

        Raises NotReady where a file is damaged: `StateReader.ready` has it made anew.
        """
        return self.with_tail(key, self.fold.row(key))

    def with_tail(self, key: bytes, after: Any) -> Any:
        """What states hold of a key, and after that its tail."""
        before = self._before(key)
        if before is None or after is None:
            return after if before is None else before
        return self.fold.reducer.merge(before, after)

    def is_folded(self, name: str, life: str) -> bool:
        """Whether this life of a name is answered for completely."""
        held = self.defined.lives.get(name)
        return held is not None and held.id == life and name not in self.base.backfilling

    def answers_more_than(self, defined: Definition, base: Base) -> bool:
        """Whether this one answers for a name that another base would not."""
        return any(self.is_folded(name, defined.lives[name].id) for name in base.backfilling)

    def knows_everyone(self, since: int) -> bool:
        """Whether every key that had an event from there on is known: some life has all events since then."""
        lives = self.defined.lives
        return any(lives[name].birth <= since for name in lives.keys() - self.base.backfilling)

    def heir(self, defined: Definition, base: Base, files: Mapping[str, StateFile]) -> Generation:
        """The next generation, which goes on with the same tail; this one is not asked any more."""
        fold = self.fold if defined == self.defined else self.fold.adopted(defined)
        found = Generation(defined, base, files, self._rows, fold)
        found.position = self.position
        return found

    def carry_on(self, defined: Definition) -> None:
        """Fold what comes as it is defined now: without lives that are over, with those that are yet to begin."""
        lives = self.defined.lives
        kept = {name for name, life in defined.lives.items() if lives.get(name) == life}
        newborn = {name for name, life in defined.lives.items() if name not in kept and life.birth >= self.position}
        now = defined.restricted(kept | newborn)
        if now == self.defined:
            return
        if newborn and len(newborn) == len(defined.lives):
            # Rows of another key, or of other steps, are none of these lives'.
            self.position = now.born
            self.base = Base(now.born, (Chain(tuple(sorted(newborn)), ()),), frozenset())
            self.fold = self.fold.emptied(now)
        else:
            self.base = self.base.carried_on(kept, newborn)
            self.fold = self.fold.adopted(now)
        self.defined = now
        self._lives = {name: life.id for name, life in now.lives.items()}
        self.number = next(_numbers)

    def _before(self, key: bytes) -> Any:
        """What states hold of a key; kept for the next time."""
        if not self.files:
            return None
        mark = self.number, key
        found = self._rows.get(mark)
        if found is None:
            packed: dict[str, dict[str, bytes] | None] = {}

            def find(state: State) -> dict[str, bytes] | None:
                if state.name not in packed:
                    packed[state.name] = self._looked_up(state, key)
                return packed[state.name]

            row = merge_row(self.fold.reducer, self._lives, self.base.chains, find)
            size = sum(len(one) for parts in packed.values() if parts for one in parts.values())
            self._rows.keep(mark, _UNSEEN if row is None else row, size * SPREAD + ROW_OVERHEAD)
            return row
        return None if found is _UNSEEN else found

    def _looked_up(self, state: State, key: bytes) -> dict[str, bytes] | None:
        file = self.files[state.name]
        try:
            return file.get(key)
        except CorruptData as reason:
            self.damaged = file
            raise NotReady from reason


def can_inherit(old: Generation, defined: Definition, base: Base) -> bool:
    """Whether the tail of a generation is that of another definition and base: no life lacks any event of it."""
    known = {life.id for life in old.defined.lives.values()}
    return base.start == old.base.start and all(
        life.id in known or life.birth >= old.position for life in defined.lives.values()
    )
