"""Entries by storage tier: the newest in rows of the log, older ones in segments.

The event loop never waits for a segment. What is decoded already is answered at once; for anything else ``NeedsFetch``
is raised, whose work a thread does, and then the read is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from headrace.deadline import Deadline
from headrace.errors import HeadraceError
from headrace.storage.published import Published, SegmentObject
from headrace.storage.wal import Wal

if TYPE_CHECKING:
    from headrace.format.segment.reader import SegmentReader, Slice
    from headrace.storage.segments import Segments

Answer = TypeVar("Answer")

#: One is enough for what is decoded ahead: more of them take the processor from who answers.
_THREADS = 1
#: Answers that threads have found, and that are kept for who asked.
_ANSWERS = 32
_MISSING: Any = object()
#: So many segments are searched for a key before the reader is told how far the search has come.
_SEGMENTS_PER_KEY = 256


class NeedsFetch(Exception):
    """The entries are in a segment that is not in memory: fetch them in a thread, then retry.

    Work with a deadline ends by itself, with what it has, and can be cancelled when nobody waits for it any more.
    """

    def __init__(self, work: Callable[[], None], deadline: Deadline | None = None) -> None:
        super().__init__("the answer lies in a segment that is not at hand")
        self.work = work
        self.deadline = deadline


class Cell(NamedTuple):
    """One entry: when it was appended, its key, and its payload."""

    append_us: int
    key: str | None
    payload: bytes


class Tiers:
    """The entries of every stream of this node, by the stream that owns them; for the event loop."""

    def __init__(self, wal: Wal, published: Published, segments: Callable[[], Segments], ahead: int) -> None:
        self.wal = wal
        self.published = published
        self._open = segments
        #: So many row groups are decoded before a reader that goes on asks for them.
        self._groups_ahead = ahead
        self._answers: dict[Hashable, Any] = {}
        self._ahead = ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-ahead")
        self._loading: set[tuple[str, int]] = set()

    @property
    def answer_bytes(self) -> int:
        """The payload bytes of cached answers that no read has used yet."""
        slices = [answer for answer in list(self._answers.values()) if hasattr(answer, "parts")]
        return sum(len(part.body) for answer in slices for part in answer.parts)

    def forget(self) -> None:
        """Drop all cached answers, and those that threads compute now: entries have changed."""
        self._answers = {}

    def close(self) -> None:
        """Stop the threads."""
        self._ahead.shutdown(cancel_futures=True)

    def read(self, owner: int, position: int, until: int, budget: int, key: str | None) -> Slice | None:
        """Entries of [position, until) from segments, as many as fit; None where the log has them."""
        if key is not None:
            return self._read_key(owner, position, until, budget, key)
        placed = self.published.holding(owner, position)
        if placed is None:
            return None
        # The end of the stream moves while a thread looks; that of a segment does not.
        until = min(until, placed.segment.end_seq)
        cache_key = ("read", placed.key, position, until, budget)
        reader = None if cache_key in self._answers else self._open().ready(placed.segment)
        if reader is None or not reader.is_loaded(position):
            entries = self._answer_once(
                cache_key, lambda: self._with_reader(placed, lambda opened: opened.read(position, until, budget))
            )
        else:
            entries = reader.read(position, min(until, reader.group_end(position)), budget)
        self._load_ahead(owner, placed, entries.position)
        return entries

    def seek_time(self, owner: int, since_us: int) -> tuple[int, int] | None:
        """The first published entry that was appended at or after a moment, and when; None if all were before."""
        placed = self.published.first_from(owner, since_us)
        if placed is None:
            return None
        if placed.segment.min_us >= since_us:
            return placed.segment.first_seq, placed.segment.min_us
        # The whole column is kept for a while: a stream with a retention rule is asked for the next moment soon.
        times = self._answer_or_fetch(
            ("times", placed.key), lambda: self._with_reader(placed, lambda reader: reader.append_times())
        )
        return times.first_since(since_us)

    def request_end(self, placed: SegmentObject, seq: int) -> int:
        """Where the append request ends that holds a published entry."""
        return self._answer_or_fetch(
            ("end", placed.key, seq), lambda: self._with_reader(placed, lambda reader: reader.request_at(seq)[1])
        )

    def time_at(self, placed: SegmentObject, seq: int) -> int:
        """The append time of a published entry."""
        return self._answer_or_fetch(
            ("at", placed.key, seq), lambda: self._with_reader(placed, lambda reader: reader.time_at(seq))
        )

    def cell(self, placed: SegmentObject, seq: int) -> Cell:
        """A published entry."""
        return self._answer_once(
            ("cell", placed.key, seq), lambda: self._with_reader(placed, lambda reader: Cell(*reader.cell(seq)))
        )

    def bytes_before(self, placed: SegmentObject, seq: int) -> int:
        """Payload bytes of the stream before a published entry."""

        cache_key = ("bytes", placed.key, seq)
        return placed.segment.before_bytes + self._answer_or_fetch(
            cache_key, lambda: self._with_reader(placed, lambda reader: reader.bytes_before(seq))
        )

    def _read_key(self, owner: int, position: int, until: int, budget: int, key: str) -> Slice | None:
        """The entries of one key, from as many segments as the budget allows; few have to be looked into."""
        following = self.published.following(owner, position, until, _SEGMENTS_PER_KEY)
        if not following:
            return None
        until = min(until, following[-1].segment.end_seq)

        def read_segments() -> Slice:
            entries = self._with_reader(following[0], lambda opened: opened.read(position, until, budget, key))
            for placed in following[1:]:
                room = budget - sum(len(part.body) + 1 for part in entries.parts)
                if room <= 0 or entries.position < placed.segment.first_seq:
                    break
                more = self._extend(placed, entries, until, room, key)
                if more is None:
                    break
                entries = more
            return entries

        return self._answer_once(("key", following[0].key, position, until, budget, key), read_segments)

    def _extend(self, placed: SegmentObject, entries: Slice, until: int, room: int, key: str) -> Slice | None:
        """The entries so far with those of one more segment; None where they do not fit, or cannot be read now."""
        try:
            more = self._with_reader(placed, lambda opened: opened.read(entries.position, until, room, key))
        except HeadraceError:
            if not entries.parts:
                raise
            return None  # what was found so far is an answer
        if entries.parts and sum(len(part.body) for part in more.parts) > room:
            return None
        return more._replace(parts=entries.parts + more.parts)

    def _with_reader(self, placed: SegmentObject, ask: Callable[[SegmentReader], Answer]) -> Answer:
        with self._open().open(placed.key, placed.segment) as reader:
            return ask(reader)

    def _answer_once(self, cache_key: Hashable, work: Callable[[], Answer]) -> Answer:
        """Like `_answer_or_fetch`, for answers so large that they are dropped from the cache once returned."""
        answer = self._answer_or_fetch(cache_key, work)
        self._answers.pop(cache_key, None)
        return answer

    def _answer_or_fetch(self, cache_key: Hashable, work: Callable[[], Answer]) -> Answer:
        """The cached answer of a thread; raises NeedsFetch where there is none.

        The answer stays for a while: a question that has several parts is asked again from the start for each.
        """
        answers = self._answers
        answer: Answer = answers.get(cache_key, _MISSING)
        if answer is not _MISSING:
            return answer

        def compute_answer() -> None:
            answers[cache_key] = work()
            for abandoned in list(answers)[:-_ANSWERS]:
                answers.pop(abandoned, None)

        raise NeedsFetch(compute_answer)

    def _load_ahead(self, owner: int, placed: SegmentObject | None, position: int) -> None:
        """Prefetch the entries that a sequential reader needs next."""
        for _ in range(self._groups_ahead):
            if placed is not None and position >= placed.segment.end_seq:
                placed = self.published.holding(owner, position)
            if placed is None:
                return
            reader = self._open().ready(placed.segment)
            if reader is None or not reader.is_loaded(position):
                self._load(placed, position)
            if reader is None:
                return
            position = reader.group_end(position)

    def _load(self, placed: SegmentObject, position: int) -> None:
        """Decode the row group of an entry in a thread, unless that is under way."""
        group = placed.key, position
        if group in self._loading:
            return
        self._loading.add(group)

        def load() -> None:
            try:
                self._with_reader(placed, lambda reader: reader.load(position))
            finally:
                self._loading.discard(group)

        self._ahead.submit(load)
