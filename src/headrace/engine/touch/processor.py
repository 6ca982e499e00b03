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


class TouchCounts:
    """Totals of one stream since its journal was opened."""

    def __init__(self) -> None:
        self.rows = self.batches = self.empty_batches = 0
        self.touches = self.table_touches = self.template_touches = 0
        self.dropped = self.cold_keys = self.cold_templates = self.overflows = 0
        self.waits_touched = self.waits_timed_out = self.waits_stale = 0
        self.flushes = self.wakeups = self.timeouts = 0
        self.wake_ms = self.wake_ms_max = self.timeout_ms = 0.0
        self.activated = self.retired = self.evicted = self.denied = 0

    def add(self, other: TouchCounts) -> None:
        """Add the totals of another stream."""
        longest_ms = max(self.wake_ms_max, other.wake_ms_max)
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        self.wake_ms_max = longest_ms

    def count_left_out(self, keys: int, *, behind: bool) -> None:
        """Count keys without waiters that were left out, since processing is behind or the budget is spent."""
        if behind:
            self.cold_keys += keys
        else:
            self.dropped += keys

    def count_wait(self, outcome: bool | str) -> None:
        """Count a wait by its outcome."""
        if isinstance(outcome, str):
            self.waits_stale += 1
        elif outcome:
            self.waits_touched += 1
        else:
            self.waits_timed_out += 1

    def count_wakeups(self, ms: float, waiters: int) -> None:
        """Count woken waiters, and how long that took."""
        self.wakeups += waiters
        self.wake_ms += ms
        self.wake_ms_max = max(self.wake_ms_max, ms)


class FlushTimes:
    """The times of the flushes of the last ten seconds."""

    def __init__(self, now_ms: float) -> None:
        self.began_ms = self.last_ms = now_ms
        self._intervals: deque[tuple[float, float]] = deque(maxlen=4096)

    def note(self, began_ms: float, now_ms: float) -> None:
        """Note that a bucket was flushed now, and when it began."""
        self._intervals.append((now_ms, now_ms - self.last_ms))
        self.began_ms, self.last_ms = began_ms, now_ms

    def intervals(self, now_ms: float) -> tuple[float, float]:
        """The longest time between flushes, and the 95th percentile."""
        recent = sorted(length for at_ms, length in self._intervals if at_ms >= now_ms - _WINDOW_MS)
        return (recent[-1], recent[min(len(recent) - 1, len(recent) * 95 // 100)]) if recent else (0.0, 0.0)


IDLE, FINE, RESTRICTED, COARSE_ONLY = "idle", "fine", "restricted", "coarseOnly"


class TouchBudget:
    """How many keys of rows one stream may report, batch by batch."""

    def __init__(self, settings: Touch, now_s: float) -> None:
        self.settings = settings
        #: What the last batch reported.
        self.mode = IDLE
        #: Whether processing is behind the log, and not only the budget spent.
        self.lags = False
        self._tokens = float(settings.fine_burst_tokens)
        self._filled_s = now_s
        self._left = 0
        self._reserve = 0

    def begin_batch(self, lag: int, now_s: float, *, fine: bool, unlimited: bool) -> None:
        """Begin a batch ``lag`` entries behind the log; ``fine`` where there are templates."""
        settings = self.settings
        if lag >= settings.lag_degrade_fine_touches_at_source_offsets > 0 and not unlimited:
            self.lags = True
        elif lag <= settings.lag_recover_fine_touches_at_source_offsets or unlimited:
            self.lags = False
        grown = (now_s - self._filled_s) * settings.fine_tokens_per_second
        self._tokens = min(settings.fine_burst_tokens, self._tokens + max(0.0, grown))
        self._filled_s = now_s
        self._left = int(min(settings.fine_touch_budget_per_batch, self._tokens))
        self._reserve = settings.lag_reserved_fine_touch_budget_per_batch
        if unlimited:
            self._left = 2**62
        behind = RESTRICTED if self._reserve else COARSE_ONLY
        self.mode = IDLE if not fine else behind if self.lags else FINE

    def spend(self, keys: int) -> bool:
        """Spend the budget on some keys; False where it is too small, and the rest of the batch is restricted."""
        if self.mode is not FINE:
            return False
        if keys > self._left:
            self.mode = RESTRICTED
            return False
        self._left -= keys
        self._tokens -= keys
        return True

    def spend_reserve(self, keys: int) -> bool:
        """Spend the reserve on keys with waiters; False where only tables are reported for the rest of the batch."""
        self._reserve -= keys
        if self._reserve < 0 and self.lags:
            self.mode = COARSE_ONLY
            return False
        return True


_ENTITIES = 4096
_table_key = lru_cache(maxsize=_ENTITIES)(table_key)


class Bucket:
    """Touched keys with waiters until the next flush, each with the position of its last touch."""

    def __init__(self) -> None:
        self.rows: dict[Key, int] = {}
        self.tables: dict[Key, int] = {}
        #: Whether there were more keys than it holds, some keys of rows were left out, or all keys of some changes.
        self.overflowed = self.thinned = self.coarse = False

    def __bool__(self) -> bool:
        return bool(self.rows or self.tables or self.overflowed or self.thinned or self.coarse)


class TouchProcessor:
    """Processes the changes of one stream, in their order."""

    def __init__(
        self,
        journal: TouchJournal,
        templates: ActiveTemplates,
        waiters: Waiters,
        budget: TouchBudget,
        counts: TouchCounts,
    ) -> None:
        self._journal = journal
        self._templates = templates
        self._waiters = waiters
        self.budget = budget
        self._counts = counts
        self.bucket = Bucket()

    def process(self, changes: list[Change | None], *, lag: int, now_s: float, unlimited: bool) -> None:
        """Process a batch ``lag`` entries behind the log, with or without a limit of keys. May raise NoBefore."""
        counts, journal = self._counts, self._journal
        self.budget.begin_batch(lag, now_s, fine=len(self._templates) > 0, unlimited=unlimited)
        before = counts.touches
        counts.batches += 1
        for change in changes:
            if change is not None:
                self._process(change, journal.through + 1)
            journal.through += 1
            counts.rows += 1
        counts.empty_batches += counts.touches == before

    def _process(self, change: Change, position: int) -> None:
        table = _table_key(change.type)
        actives = [active for active in self._templates.of(change.type) if position > active.active_from]
        cold = [active.template for active in actives if self._is_cold(active)]
        hot = [active.template for active in actives if active.template not in cold]
        # Keys are computed before anything is recorded, since a change is recorded as a whole or not at all.
        policy = self.budget.settings.on_missing_before
        keys_by_template = (
            [] if self.budget.mode is COARSE_ONLY else [touched_keys(template, change, policy) for template in hot]
        )
        self._counts.table_touches += 1
        self._counts.touches += 1
        self._journal.record(table, position)
        if self._waiters.has_waiter(table):
            self._add_to_bucket(self.bucket.tables, table, position)
        if hot and not keys_by_template:
            self._leave_out(position)
        for template, keys in zip(hot, keys_by_template, strict=False):
            self._record_keys(template, keys, position)
        for template in cold:
            self._record_cold_template(template, position)

    def _is_cold(self, active: ActiveTemplate) -> bool:
        return self.budget.mode is RESTRICTED and self._waiters.is_cold(active.template, active.active_from)

    def _record_keys(self, template: Template, keys: set[Key] | None, position: int) -> None:
        if keys is None:
            self._counts.template_touches += 1
            keys = {template.key}
        elif not self.budget.spend(len(keys)):
            self._record_hot_keys(template, keys, position)
            return
        self._touch(keys, position)

    def _record_hot_keys(self, template: Template, keys: set[Key], position: int) -> None:
        """Record keys with waiters; for later waiters, the key of the template is touched in place of the others."""
        hot_keys = {key for key in keys if self._waiters.is_hot(key)}
        self._counts.count_left_out(len(keys) - len(hot_keys), behind=self.budget.lags)
        if self.budget.mode is COARSE_ONLY or not self.budget.spend_reserve(len(hot_keys)):
            self._leave_out(position)
            return
        self._touch(hot_keys, position)
        self._record_template(template, position)
        self._journal.thinned = position
        self.bucket.thinned = True

    def _record_cold_template(self, template: Template, position: int) -> None:
        """Record the key of a template without waiters in place of those of its rows."""
        self._counts.cold_templates += 1
        self._record_template(template, position)
        self._journal.cold = position

    def _record_template(self, template: Template, position: int) -> None:
        self._counts.template_touches += 1
        self._journal.record(template.key, position)

    def _leave_out(self, position: int) -> None:
        self._journal.coarse = position
        self.bucket.coarse = True

    def _touch(self, keys: set[Key], position: int) -> None:
        self._counts.touches += len(keys)
        for key in keys:
            self._journal.record(key, position)
            if self._waiters.has_waiter(key):
                self._add_to_bucket(self.bucket.rows, key, position)

    def _add_to_bucket(self, bucket_keys: dict[Key, int], key: Key, position: int) -> None:
        if len(bucket_keys) < self.budget.settings.memory.pending_max_keys:
            bucket_keys[key] = position
        else:
            self.bucket.overflowed = True
