"""The touches of one stream: follows its log, and wakes waiters bucket by bucket.

Nothing here waits or keeps time. Its owner says when to step and when to flush.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from headrace.engine.log import read as reading
from headrace.engine.runtime.event_loop import Slices
from headrace.engine.touch.active_templates import ActiveTemplates
from headrace.engine.touch.journal import TouchJournal
from headrace.engine.touch.processor import (
    COARSE_ONLY,
    RESTRICTED,
    Bucket,
    FlushTimes,
    TouchBudget,
    TouchCounts,
    TouchProcessor,
)
from headrace.engine.touch.waiters import FINE_KEY, TABLE_KEY, TEMPLATE_KEY, Waiter, Waiters
from headrace.errors import BadRequest, NotRepresentable
from headrace.profiles.state_protocol import keys
from headrace.profiles.state_protocol.keys import Key, Template, id_of
from headrace.profiles.state_protocol.messages import NoBefore, changes_of
from headrace.profiles.state_protocol.profile import Touch

if TYPE_CHECKING:
    from headrace.engine.log.stream import Stream
    from headrace.engine.log.tiers import Tiers
    from headrace.engine.touch.active_templates import ActiveTemplate

NOW = "now"
MAX_EXACT_KEYS = 16
_CURSOR = re.compile("([0-9a-f]{16}):([0-9]{1,19})")


class WaitRequest(NamedTuple):
    """A request to wait."""

    cursor: str
    keys: list[str]
    key_ids: list[int]
    coarse: bool = False
    exact: bool = False
    #: Ids of templates that the keys are of.
    templates: tuple[int, ...] = ()
    #: Templates that were declared with it, and were denied.
    refused: tuple[Template, ...] = ()


def _parse_cursor(cursor: str, journal: TouchJournal, end: int) -> int | None:
    """The position of a cursor, at most the end; None where it belongs to another journal."""
    if cursor == NOW:
        return end
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise BadRequest("a cursor is <epoch>:<generation>, or now", field="cursor")
    return min(int(match[2]), end) if match[1] == journal.epoch else None


def _check_exact(request: WaitRequest) -> None:
    """Refuse a request for an exact wait that is not one for a few keys of rows."""
    parsed_keys = {keys.parse_key(text) for text in request.keys}
    if request.coarse or request.key_ids or None in parsed_keys or not 1 <= len(parsed_keys) <= MAX_EXACT_KEYS:
        message = f"an exact wait is a fine one, for 1 to {MAX_EXACT_KEYS} keys of 16 hex digits"
        raise BadRequest(message, field="exact", limit=MAX_EXACT_KEYS)


def _make_waiter(request: WaitRequest, since: int, active_templates: ActiveTemplates, mode: str) -> Waiter:
    """The waiter of a request; templates that are not active are left out."""
    actives = [active_templates.get(template) for template in request.templates]
    templates = tuple(active.template for active in actives if active is not None)
    tables = {template.table_key for template in (*templates, *request.refused)}
    parsed = {text: keys.parse_key(text) for text in request.keys}
    words = {keys.id_of_text(text) for text, key in parsed.items() if key is None}
    ids, wanted = words | set(request.key_ids), {key for key in parsed.values() if key is not None}
    if request.coarse:
        return Waiter(since, TABLE_KEY, keys=tables or wanted, ids=() if tables else ids)
    fallbacks = {template.key for template in templates} | {template.table_key for template in request.refused}
    kind = TABLE_KEY if request.refused else FINE_KEY
    if templates and mode in (RESTRICTED, COARSE_ONLY):
        kind = TEMPLATE_KEY if mode == RESTRICTED and not request.refused else TABLE_KEY
    return Waiter(
        since, kind, keys=wanted, ids=ids, fine=True, templates=templates, fallbacks=fallbacks, exact=request.exact
    )


#: The payload that one step processes.
STEP_BYTES = 32 * 1024
OTHER_EPOCH = "the cursor belongs to another journal: ask again, and go on from this cursor"
TOO_OLD = "the journal begins after this cursor: ask again, and go on from this one"
NOT_ACTIVE = "a template is not active: activate it, ask again, and go on from this cursor"
UNKNOWN_KEYS = "it cannot be told whether these very keys were touched: ask again, and go on from this cursor"
HALTED = "an update does not say what its row was before, and touches stop there: see onMissingBefore"


class StreamTouches:
    """The journal, the templates and the waiters of one stream."""

    def __init__(
        self,
        stream: Stream,
        settings: Touch,
        journal: TouchJournal,
        templates: ActiveTemplates,
        tiers: Tiers,
        now_ms: float,
        slices: Slices | None = None,
    ) -> None:
        self.stream = stream
        self.journal = journal
        self.templates = templates
        self.counts = TouchCounts()
        self.flushes = FlushTimes(now_ms)
        self.waiters = Waiters(settings.memory)
        self.processor = TouchProcessor(
            journal, templates, self.waiters, TouchBudget(settings, monotonic()), self.counts
        )
        #: Why nothing is processed any more; empty otherwise.
        self.halted = ""
        #: Held while templates are activated, so that requests take turns.
        self.activation_lock = asyncio.Lock()
        self.used_s = monotonic()
        self._slices = slices or Slices()
        self._tiers = tiers
        # Changes that were in the log when the journal was opened are recorded without a limit.
        self._unlimited_until = stream.head.next_seq

    @property
    def settings(self) -> Touch:
        """The settings of the stream's profile."""
        return self.processor.budget.settings

    def change(self, settings: Touch) -> None:
        """Apply other settings from now on."""
        self.processor.budget = TouchBudget(settings, monotonic())
        self.templates.settings = settings.templates
        self.waiters.memory = settings.memory
        self.journal.resize(settings.memory)
        self.halted = ""
        self._check_all(self.waiters.parked)

    @property
    def mode(self) -> str:
        """Whether rows, hot rows only, or only tables are reported as touched."""
        return self.processor.budget.mode

    @property
    def lag(self) -> int:
        """Entries that are not processed yet."""
        return self.stream.head.next_seq - self.journal.through

    @property
    def settled(self) -> bool:
        """Whether all changes are processed, and all waiters are woken."""
        return not self.lag and not self.processor.bucket

    # -- following the log

    def step(self) -> bool:
        """Process some changes; returns whether there are more. Raises NeedsFetch where they have to be fetched."""
        stream, journal = self.stream, self.journal
        head, start = stream.head, journal.through
        if start >= head.next_seq or self.halted:
            return False
        if start < head.first_seq:
            self._skip(head.first_seq)  # retention has removed them
            return True
        view = None if head.registry is None else head.registry.view()
        try:
            entries = reading.read(self._tiers, stream, head, start, budget=STEP_BYTES, view=view)
        except NotRepresentable:
            self._skip(start + 1)
            return True
        changes = changes_of(b",".join(entries.parts)) if entries.parts else []
        if len(changes) != entries.position - start:
            self._skip(max(entries.position, start + 1))
            return True
        try:
            self.processor.process(
                changes, lag=head.next_seq - start, now_s=monotonic(), unlimited=start < self._unlimited_until
            )
        except NoBefore:
            self.halted = HALTED
            self._check_all(self.waiters.parked)
            return False
        return journal.through < stream.head.next_seq

    def _skip(self, position: int) -> None:
        """Continue after entries that cannot be read; touches before them are unknown from now on."""
        self.journal.through = position
        self.journal.forget()
        self._check_all(self.waiters.parked)

    # -- waking waiters

    def flush(self, now_ms: float, *, rows: bool = True, tables: bool = True) -> None:
        """Wake the waiters of rows, of tables or of both that were touched since the last flush."""
        began_s, bucket = monotonic(), self.processor.bucket
        kept = self.processor.bucket = Bucket()
        touched: dict[Key, int] = {}
        if rows:
            touched |= bucket.rows
        else:
            kept.rows, kept.thinned, kept.coarse = bucket.rows, bucket.thinned, bucket.coarse
        if tables:
            touched |= bucket.tables
        else:
            kept.tables = bucket.tables
        woken = self._answer_all(
            (waiter, self._outcome(waiter, touched)) for waiter in self.waiters.waiting_for(touched)
        )
        if bucket.overflowed:
            woken += self._check_all(self.waiters.parked)
        elif rows and bucket.coarse:
            woken += self._check_all([waiter for waiter in self.waiters.parked if waiter.fine])
        elif rows and bucket.thinned:
            woken += self._check_all([waiter for waiter in self.waiters.broad if waiter.fine])
        self.waiters.cool_down()
        self.counts.overflows += bucket.overflowed
        self.counts.flushes += 1
        self.counts.count_wakeups((monotonic() - began_s) * 1000, woken)

    def _outcome(self, waiter: Waiter, touched: dict[Key, int]) -> bool | str:
        """The outcome of a wait that a touch has ended."""
        if not waiter.exact:
            return True
        own = any(touched.get(key, 0) > waiter.since for key in waiter.keys)
        return True if own else UNKNOWN_KEYS

    def _check_all(self, waiters: Iterable[Waiter]) -> int:
        """Check waiters one by one; returns how many of them were woken."""
        outcomes = [(waiter, self.check(waiter)) for waiter in tuple(waiters)]
        return self._answer_all((waiter, outcome) for waiter, outcome in outcomes if outcome is not None)

    def _answer_all(self, outcomes: Iterable[tuple[Waiter, bool | str]]) -> int:
        """Remove waiters and answer them, in slices between which the loop serves others; returns how many."""
        answers: list[Callable[[], None]] = []
        for waiter, outcome in outcomes:
            if self.waiters.remove(waiter):
                self.counts.count_wait(outcome)
                answers.append(partial(waiter.answer, outcome))
        self._slices.run_all(answers)
        return len(answers)

    # -- waiters

    def begin_wait(self, request: WaitRequest) -> tuple[Waiter, bool | str | None]:
        """The waiter of a request, and the outcome where it need not wait."""
        self.used_s = monotonic()
        if request.exact:
            _check_exact(request)
        since = _parse_cursor(request.cursor, self.journal, self.stream.head.next_seq)
        waiter = _make_waiter(request, -1 if since is None else since, self.templates, self.mode)
        if since is None:
            return waiter, OTHER_EPOCH
        denied = {template.id for template in request.refused}
        if waiter.fine and any(id not in denied and self.templates.get(id) is None for id in request.templates):
            return waiter, NOT_ACTIVE
        return waiter, self.check(waiter)

    def time_out(self, waiter: Waiter) -> None:
        """End a wait whose time is up; touches that were not flushed yet count."""
        outcome = self.check(waiter)
        self._answer_all([(waiter, False if outcome is None else outcome)])

    def retire(self, actives: list[ActiveTemplate]) -> None:
        """Remove templates, and wake the waiters of their rows."""
        self.templates.remove(actives)
        retired = {active.template.id for active in actives}
        waiters = self.waiters.parked
        self._check_all([waiter for waiter in waiters if any(template.id in retired for template in waiter.templates)])

    def check(self, waiter: Waiter) -> bool | str | None:
        """The outcome of a wait: whether a key was touched, or why that is unknown; None while it continues."""
        journal, since = self.journal, waiter.since
        if self.halted or since < journal.floor:
            return self.halted or TOO_OLD
        touched = [journal.touched(key, since) for key in waiter.keys]
        if True in touched:
            return True
        if any(journal.last(key_id) > since for key_id in waiter.ids):
            return True
        if any(self.templates.get(template.id) is None for template in waiter.templates):
            return NOT_ACTIVE
        if None in touched or self._may_be_touched(waiter):
            return UNKNOWN_KEYS if waiter.exact else True
        return None

    def _may_be_touched(self, waiter: Waiter) -> bool:
        """Whether keys of rows may have been touched without being recorded."""
        journal, since = self.journal, waiter.since
        if any(journal.last(id_of(key)) > since for key in waiter.fallbacks):
            return True
        if not waiter.fine:
            return False
        if not waiter.templates:
            thinned = journal.thinned > since and not self.waiters.hot_since(waiter, since)
            return thinned or max(journal.coarse, journal.cold) > since
        late = [
            template for template in waiter.templates if journal.coarse > since or self._began_after(template.id, since)
        ]
        return any(journal.last(id_of(template.table_key)) > since for template in late)

    def _began_after(self, template: int, since: int) -> bool:
        active = self.templates.get(template)
        return active is not None and active.active_from > since
