"""Turns changes into touched keys: all go into the journal, and those with waiters into the bucket."""

from __future__ import annotations

from functools import lru_cache

from headrace.engine.touch.active_templates import ActiveTemplate, ActiveTemplates
from headrace.engine.touch.counts import Counts
from headrace.engine.touch.journal import TouchJournal
from headrace.engine.touch.pressure import COARSE_ONLY, RESTRICTED, Pressure
from headrace.engine.touch.waiters import Waiters
from headrace.profiles.state_protocol.keys import Key, Template, table_key
from headrace.profiles.state_protocol.messages import Change, touched_keys

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

    def __init__(
        self, journal: TouchJournal, roster: ActiveTemplates, parking: Waiters, pressure: Pressure, counts: Counts
    ) -> None:
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
        actives = [active for active in self._roster.of(change.type) if position > active.active_from]
        cold = [active.template for active in actives if self._is_left_cold(active)]
        hot = [active.template for active in actives if active.template not in cold]
        # What cannot be told is found out before anything is put down: the change is taken whole or not at all.
        policy = self.pressure.touch.on_missing_before
        keys_by_template = (
            [] if self.pressure.mode is COARSE_ONLY else [touched_keys(template, change, policy) for template in hot]
        )
        self._counts.table_touches += 1
        self._counts.touches += 1
        self._journal.record(table, position)
        if self._parking.hears(table):
            self._add_to_bucket(self.bucket.tables, table, position)
        if hot and not keys_by_template:
            self._leave_out(position)
        for template, keys in zip(hot, keys_by_template, strict=False):
            self._put_down(template, keys, position)
        for template in cold:
            self._leave_cold(template, position)

    def _is_left_cold(self, active: ActiveTemplate) -> bool:
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
                self._add_to_bucket(self.bucket.rows, key, position)

    def _add_to_bucket(self, bucket_keys: dict[Key, int], key: Key, position: int) -> None:
        if len(bucket_keys) < self.pressure.touch.memory.pending_max_keys:
            bucket_keys[key] = position
        else:
            self.bucket.overflowed = True
