"""Rows as the batches of a producer: cut in the same way each time, so that the server takes each batch once.

Without any IO: the owner sends what `next_request` returns, and passes on the answer or the refusal. The server takes
each number of a producer once, and says which one it has taken last, so an append that was stopped goes on there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.client import requests
from headrace.client.answers import Answer
from headrace.client.requests import Request
from headrace.errors import BadRequest, HeadraceError, TooLarge
from headrace.types import JSON

if TYPE_CHECKING:
    import pyarrow

#: A request has at most so many rows and bytes. Another number would cut the rows of an interrupted append anew.
BATCH_ROWS, BATCH_BYTES = 10_000, 4 * 1024 * 1024


class BadRow(NamedTuple):
    """A row that cannot be imported: the file, its number counted from 1 and header lines aside, its text, and why."""

    path: str
    number: int
    text: str
    reason: str

    @property
    def where(self) -> str:
        """What is bad, for messages."""
        return f"row {self.number} of {self.path}"


class Chunk(NamedTuple):
    """Some rows as texts of JSON, in order, with their file and their numbers, and those between that are no rows."""

    path: str
    numbers: pyarrow.Int64Array
    rows: pyarrow.Array
    bad: Sequence[BadRow]


class RefusedRow(NamedTuple):
    """A row that the server refuses: where it is from, its text, and the pointer and the reason of each failure."""

    path: str
    number: int
    text: str
    failures: Sequence[tuple[str, str]]


class RowBatch(NamedTuple):
    """Rows of one request, with the file and the number of each."""

    rows: pyarrow.Array
    numbers: pyarrow.Array
    #: Where the rows of each file end.
    paths: tuple[tuple[int, str], ...]

    def locate(self, index: int) -> tuple[str, int]:
        """The file and the number of a row."""
        path = next(path for end, path in self.paths if index < end)
        return path, self.numbers[index].as_py()


class RowAppends:
    """The requests that append batches of rows, one after the other, and how many rows they appended."""

    def __init__(
        self,
        stream: str,
        producer_id: str,
        batches: Iterator[RowBatch],
        *,
        on_refused: Callable[[RefusedRow], None],
        on_rows: Callable[[int], None] = lambda count: None,
        key: str = "",
    ) -> None:
        """``on_refused`` is called with each row that the server refuses, ``on_rows`` with each count of rows done."""
        self.appended = self.already_there = 0
        #: The end of the stream; None where no row was sent.
        self.next_offset: str | None = None
        self._stream = stream
        self._producer_id = producer_id
        self._batches = batches
        self._on_refused, self._on_rows = on_refused, on_rows
        self._key = key
        self._batch: RowBatch | None = None
        #: The rows of the batch that the server has not refused.
        self._kept: Any = None
        self._seq = self._next_seq = 0

    def next_request(self) -> Request | None:
        """The request to send now; None when all rows are done."""
        import numpy as np
        import pyarrow as pa

        while self._batch is None:
            batch = next(self._batches, None)
            if batch is None:
                return None
            if self._seq < self._next_seq:  # the server has it, as its answer to an earlier batch says
                self.already_there += len(batch.rows)
                self._seq += 1
                self._on_rows(len(batch.rows))
            else:
                self._batch, self._kept = batch, np.arange(len(batch.rows))
        rows = self._batch.rows
        kept = rows if len(self._kept) == len(rows) else rows.take(pa.array(self._kept))
        request = requests.produce(
            self._stream, join_rows(kept), JSON, key=self._key, producer_id=self._producer_id, epoch=0, seq=self._seq
        )
        # A batch that is sent again is not appended again.
        return msgspec.structs.replace(request, changes=False)

    def accept(self, answer: Answer) -> None:
        """Take the successful answer to the request."""
        self.next_offset = answer.header("stream-next-offset")
        self._next_seq = max(self._next_seq, int(answer.header("producer-seq")) + 1)
        if answer.status == 204:  # a producer's request that was there already
            self.already_there += len(self._kept)
        else:
            self.appended += len(self._kept)
        self._seq += 1
        self._finish_batch()

    def refuse(self, refusal: HeadraceError) -> None:
        """Leave out the rows that the server refuses; raises the refusal where it names none."""
        import numpy as np

        if isinstance(refusal, TooLarge):
            raise TooLarge(
                f"{refusal.message}: raise limits.body_bytes of the server to {BATCH_BYTES * 2}"
            ) from refusal
        failures = refusal.facts.get("failures")
        if not failures or self._batch is None:
            raise refusal
        failures_by_row: dict[int, list[tuple[str, str]]] = {}
        for failure in failures:
            failures_by_row.setdefault(failure["index"], []).append((failure["pointer"], failure["reason"]))
        for index, row_failures in failures_by_row.items():
            at = int(self._kept[index])
            path, number = self._batch.locate(at)
            self._on_refused(RefusedRow(path, number, self._batch.rows[at].as_py(), row_failures))
        self._kept = np.delete(self._kept, list(failures_by_row))
        if not len(self._kept):
            self._skip_batch(self._batch)

    def _skip_batch(self, batch: RowBatch) -> None:
        """Go on behind a batch of which nothing is left; only the last one may be like that.

        A number that is not used up would be taken by the next batch, and an append that goes on later could not know.
        """
        self._finish_batch()
        if (following := next(self._batches, None)) is not None:
            path, number = batch.locate(0)
            rows = f"none of {len(batch.rows):,} rows from row {number}{f' of {path}' if path else ''} on"
            raise BadRequest(f"{rows} fits the stream's schema, and {len(following.rows):,} rows or more follow")

    def _finish_batch(self) -> None:
        assert self._batch is not None, "there is a batch until its request is settled"
        self._on_rows(len(self._batch.rows))
        self._batch = None


def cut_batches(chunks: Iterator[Chunk], reject: Callable[[BadRow], None]) -> Iterator[RowBatch]:
    """The rows of chunks in batches that depend on the rows alone, whatever the chunks are."""
    import pyarrow as pa

    rows, numbers, paths = pa.array([], pa.string()), pa.array([], pa.int64()), list[tuple[int, str]]()
    for chunk in chunks:
        for bad in chunk.bad:
            reject(bad)
        rows = pa.concat_arrays([rows, chunk.rows])
        numbers = pa.concat_arrays([numbers, chunk.numbers])
        paths.append((len(rows), chunk.path))
        ends = list(_ends(rows))
        start = 0
        for end in ends[:-1]:  # the last one may still grow
            yield _slice(rows, numbers, paths, start, end)
            start = end
        rows, numbers, paths = rows[start:], numbers[start:], _shift(paths, start)
    if len(rows):
        yield _slice(rows, numbers, paths, 0, len(rows))


def _ends(rows: pyarrow.Array) -> Iterator[int]:
    """Where batches end."""
    import numpy as np
    import pyarrow.compute as pc

    total = np.cumsum(pc.binary_length(rows).to_numpy() + 1)
    start = 0
    while start < len(rows):
        before = int(total[start - 1]) if start else 0
        by_bytes = int(np.searchsorted(total, before + BATCH_BYTES, side="right"))
        start = max(start + 1, min(start + BATCH_ROWS, by_bytes))
        yield min(start, len(rows))


def _slice(rows: pyarrow.Array, numbers: pyarrow.Array, paths: list[tuple[int, str]], start: int, end: int) -> RowBatch:
    return RowBatch(rows[start:end], numbers[start:end], tuple(_shift(paths, start)))


def _shift(paths: list[tuple[int, str]], start: int) -> list[tuple[int, str]]:
    return [(end - start, path) for end, path in paths if end > start]


def join_rows(rows: pyarrow.Array) -> bytes:
    """The body of a request that appends these rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows), ",")
    return b"".join((b"[", joined[0].as_buffer(), b"]"))
