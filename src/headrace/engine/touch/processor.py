"""Turns changes into touched keys: all go into the journal, and those with waiters into the bucket.

Under load, a budget decides whether the keys of rows are reported, only those with waiters, or only tables.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache

from headrace.engine.touch.active_templates import ActiveTemplate, ActiveTemplates
from headrace.engine.touch.journal import TouchJournal
from headrace.engine.touch.waiters import Waiters
from headrace.profiles.state_protocol.keys import Key, Template, table_key
from headrace.profiles.state_protocol.messages import Change, touched_keys
from headrace.profiles.state_protocol.profile import Touch

_WINDOW_MS = 10_000


class Counts:
    """Totals since the journal was opened."""

    def __init__(self) -> None:
        self.rows = self.batches = self.empty_batches = 0
        self.touches = self.table_touches = self.template_touches = 0
        self.dropped = self.cold_keys = self.cold_templates = self.overflows = 0
        self.waits_touched = self.waits_timed_out = self.waits_stale = 0
        self.flushes = self.wakeups = self.timeouts = 0
        self.wake_ms = self.wake_ms_max = self.timeout_ms = 0.0
        self.activated = self.retired = self.evicted = self.denied = 0

    def add(self, other: Counts) -> None:
        """Count what others have counted."""
        longest_ms = max(self.wake_ms_max, other.wake_ms_max)
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        self.wake_ms_max = longest_ms

    def left_out(self, keys: int, *, behind: bool) -> None:
        """Keys that nobody waits for were not told: processing is behind, or they were more than a stream may spend."""
        if behind:
            self.cold_keys += keys
        else:
            self.dropped += keys

    def waited(self, outcome: bool | str) -> None:
        """A wait has ended so."""
        if isinstance(outcome, str):
            self.waits_stale += 1
        elif outcome:
            self.waits_touched += 1
        else:
            self.waits_timed_out += 1

    def woke(self, ms: float, waiters: int) -> None:
        """So many were woken, which took so long."""
        self.wakeups += waiters
        self.wake_ms += ms
        self.wake_ms_max = max(self.wake_ms_max, ms)


class Flushes:
    """When the journal was flushed, over the last ten seconds."""

    def __init__(self, now_ms: float) -> None:
        self.began_ms = self.last_ms = now_ms
        self._intervals: deque[tuple[float, float]] = deque(maxlen=4096)

    def note(self, began_ms: float, now_ms: float) -> None:
        """A bucket that began then was flushed now."""
        self._intervals.append((now_ms, now_ms - self.last_ms))
        self.began_ms, self.last_ms = began_ms, now_ms

    def intervals(self, now_ms: float) -> tuple[float, float]:
        """The longest time between flushes, and the 95th percentile."""
        recent = sorted(length for at_ms, length in self._intervals if at_ms >= now_ms - _WINDOW_MS)
        return (recent[-1], recent[min(len(recent) - 1, len(recent) * 95 // 100)]) if recent else (0.0, 0.0)


IDLE, FINE, RESTRICTED, COARSE_ONLY = "idle", "fine", "restricted", "coarseOnly"


class Pressure:
    """What one stream has to spend on keys of rows, batch by batch."""

    def __init__(self, touch: Touch, now_s: float) -> None:
        self.touch = touch
        #: How the last batch went.
        self.mode = IDLE
        #: Whether there is too much to process, and not only too much to tell.
        self.lags = False
        self._tokens = float(touch.fine_burst_tokens)
        self._filled_s = now_s
        self._room = 0
        self._reserve = 0

    def begin(self, lag: int, now_s: float, *, fine: bool, free: bool) -> None:
        """A batch begins, so many entries behind; ``fine``: there are templates; ``free``: keys cost nothing."""
        touch = self.touch
        if lag >= touch.lag_degrade_fine_touches_at_source_offsets > 0 and not free:
            self.lags = True
        elif lag <= touch.lag_recover_fine_touches_at_source_offsets or free:
            self.lags = False
        grown = (now_s - self._filled_s) * touch.fine_tokens_per_second
        self._tokens = min(touch.fine_burst_tokens, self._tokens + max(0.0, grown))
        self._filled_s = now_s
        self._room = int(min(touch.fine_touch_budget_per_batch, self._tokens))
        self._reserve = touch.lag_reserved_fine_touch_budget_per_batch
        if free:
            self._room = 2**62
        behind = RESTRICTED if self._reserve else COARSE_ONLY
        self.mode = IDLE if not fine else behind if self.lags else FINE

    def spend(self, keys: int) -> bool:
        """Whether so many keys may be told; where not, the rest of the batch is restricted."""
        if self.mode is not FINE:
            return False
        if keys > self._room:
            self.mode = RESTRICTED
            return False
        self._room -= keys
        self._tokens -= keys
        return True

    def spare(self, keys: int) -> bool:
        """Whether so many keys that someone waits for may be told; where not, only tables are for the rest of it."""
        self._reserve -= keys
        if self._reserve < 0 and self.lags:
            self.mode = COARSE_ONLY
            return False
        return True


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
