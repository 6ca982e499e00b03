"""From changes to touches: each is put down in the journal, and in the bucket of those that someone waits for."""

from __future__ import annotations

from functools import lru_cache

from headrace.engine.touch.counts import Counts
from headrace.engine.touch.journal import Journal
from headrace.engine.touch.parking import Parking
from headrace.engine.touch.pressure import COARSE_ONLY, RESTRICTED, Pressure
from headrace.engine.touch.roster import Active, Roster
from headrace.profiles.state_protocol.keys import Key, table_key
from headrace.profiles.state_protocol.messages import Change, touched_keys
from headrace.profiles.state_protocol.templates import Template

_ENTITIES = 4096
_table_key = lru_cache(maxsize=_ENTITIES)(table_key)


class Bucket:
    """Touched keys that someone waits for, until they are told: with the position of the last touch."""

    def __init__(self) -> None:
        self.rows: dict[Key, int] = {}
        self.tables: dict[Key, int] = {}
        #: Whether there were more than it holds; keys of rows were left out; and: all of some changes.
        self.overflowed = self.thinned = self.coarse = False

    def __bool__(self) -> bool:
        return bool(self.rows or self.tables or self.overflowed or self.thinned or self.coarse)


class Processor:
    """Takes the changes of one stream, in their order."""

    def __init__(self, journal: Journal, roster: Roster, parking: Parking, pressure: Pressure, counts: Counts) -> None:
        self._journal = journal
        self._roster = roster
        self._parking = parking
        self.pressure = pressure
        self._counts = counts
        self.bucket = Bucket()

    def take(self, changes: list[Change | None], *, lag: int, now_s: float, free: bool) -> None:
        """Process a batch, so many entries behind the end; a free one costs nothing. May raise NoBefore."""
        counts, journal = self._counts, self._journal
        self.pressure.begin(lag, now_s, fine=len(self._roster) > 0, free=free)
        before = counts.touches
        counts.batches += 1
        for change in changes:
            if change is not None:
                self._take(change, journal.through + 1)
            journal.through += 1
            counts.rows += 1
        counts.empty_batches += counts.touches == before

    def _take(self, change: Change, position: int) -> None:
        table = _table_key(change.type)
        actives = [one for one in self._roster.of(change.type) if position > one.active_from]
        cold = [one.template for one in actives if self._is_left_cold(one)]
        hot = [one.template for one in actives if one.template not in cold]
        # What cannot be told is found out before anything is put down: the change is taken whole or not at all.
        policy = self.pressure.touch.on_missing_before
        told = [] if self.pressure.mode is COARSE_ONLY else [touched_keys(one, change, policy) for one in hot]
        self._counts.table_touches += 1
        self._counts.touches += 1
        self._journal.record(table, position)
        if self._parking.hears(table):
            self._tell(self.bucket.tables, table, position)
        if hot and not told:
            self._leave_out(position)
        for template, keys in zip(hot, told, strict=False):
            self._put_down(template, keys, position)
        for template in cold:
            self._leave_cold(template, position)

    def _is_left_cold(self, active: Active) -> bool:
        return self.pressure.mode is RESTRICTED and self._parking.is_cold(active.template, active.active_from)

    def _put_down(self, template: Template, keys: set[Key] | None, position: int) -> None:
        if keys is None:
            self._counts.template_touches += 1
            keys = {template.key}
        elif not self.pressure.spend(len(keys)):
            self._thin_out(template, keys, position)
            return
        self._touch(keys, position)

    def _thin_out(self, template: Template, keys: set[Key], position: int) -> None:
        """Tell those who wait; for those who come later, the template stands for its rows."""
        heard = {key for key in keys if self._parking.is_hot(key)}
        self._counts.left_out(len(keys) - len(heard), behind=self.pressure.lags)
        if self.pressure.mode is COARSE_ONLY or not self.pressure.spare(len(heard)):
            self._leave_out(position)
            return
        self._touch(heard, position)
        self._stand_for_rows(template, position)
        self._journal.thinned = position
        self.bucket.thinned = True

    def _leave_cold(self, template: Template, position: int) -> None:
        """Nobody who waits is concerned: rows are not even looked for, and the template stands for them."""
        self._counts.cold_templates += 1
        self._stand_for_rows(template, position)
        self._journal.cold = position

    def _stand_for_rows(self, template: Template, position: int) -> None:
        self._counts.template_touches += 1
        self._journal.record(template.key, position)

    def _leave_out(self, position: int) -> None:
        self._journal.coarse = position
        self.bucket.coarse = True

    def _touch(self, keys: set[Key], position: int) -> None:
        self._counts.touches += len(keys)
        for key in keys:
            self._journal.record(key, position)
            if self._parking.hears(key):
                self._tell(self.bucket.rows, key, position)

    def _tell(self, told: dict[Key, int], key: Key, position: int) -> None:
        if len(told) < self.pressure.touch.memory.pending_max_keys:
            told[key] = position
        else:
            self.bucket.overflowed = True
