"""Cutting bodies of append requests into entries, natively where they are plain enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.format.segment import layout
from headrace.format.segment.columns import column, flags, pieces, spread, texts

Payload = bytes | msgspec.Raw
#: Cuts any JSON body.
Split = Callable[[bytes], Sequence[Payload]]

_OPEN, _CLOSE, _COMMA, _QUOTE = b'{},"'


def cut(bodies: Sequence[bytes], counts: Sequence[int], split: Split) -> Any:
    """The entries of JSON bodies, each of which holds so many joined by commas, as a column of text."""
    count = sum(counts)
    # Streams hold events of one kind: where the first are not plain, the others are not worth a look.
    if _starts(bodies[0], counts[0]) is not None:
        text = b",".join(bodies)
        starts = _starts(text, count)
        if starts is not None:
            return _between(text, starts, np.append(starts[1:] - 1, len(text)))
    entries = list(chain.from_iterable(map(split, bodies)))
    if len(entries) != count:
        raise ValueError(f"bodies of {count} entries hold {len(entries)}")
    return pieces(pa.string(), entries)


def _starts(text: bytes, count: int) -> Any:
    """Where entries begin, if all are objects with no braces inside and nothing but commas between; else None.

    Valid JSON is cut rightly, whatever is in its strings. All braces being used up by ``{`` at the start, ``},{`` and
    ``}`` at the end, no object can be inside another, nor can an entry be anything else: behind the end of an object
    there is another one. So there is one entry more than there are ``},{`` outside strings; and as there is one entry
    more than there are ``},{`` at all, none is inside a string.
    """
    marks = np.frombuffer(text, np.uint8)
    starts = np.flatnonzero(marks == _OPEN)
    if len(starts) != count or starts[0] or marks[-1] != _CLOSE or np.count_nonzero(marks == _CLOSE) != count:
        return None
    is_plain = (marks[starts[1:] - 1] == _COMMA).all() and (marks[starts[1:] - 2] == _CLOSE).all()
    return starts if is_plain else None


def cut_keys(lists: Sequence[bytes | msgspec.Raw], count: int) -> Any:
    """The strings of JSON lists, so many in all, as a column of text; None where there is anything else in them.

    Where nothing is escaped, every quotation mark begins or ends a string.
    """
    text = b",".join(lists)
    quotes = np.flatnonzero(np.frombuffer(text, np.uint8) == _QUOTE)
    if len(quotes) != 2 * count or b"\\" in text:
        return None
    return _between(text, quotes[::2] + 1, quotes[1::2])


def _between(text: bytes, starts: Any, ends: Any) -> Any:
    """What lies between these places, as a column of text."""
    count = len(starts)
    bounds = np.empty(2 * count, np.int32)
    bounds[::2], bounds[1::2] = starts, ends
    with_gaps = column(pa.string(), 2 * count - 1, bounds, text)
    return with_gaps.take(pa.arange(0, 2 * count - 1, 2))


Keys = str | Sequence[str | None] | None
StoredKeys = Keys | msgspec.Raw


class RunColumns(NamedTuple):
    """The metadata of runs, or of parts of them, in columns."""

    counts: Sequence[int]
    #: Whether they begin their runs.
    begin: Sequence[bool]
    append_us: Sequence[int]
    versions: Sequence[int]
    #: For each run one key, none, or a list that may be JSON still.
    keys: Sequence[StoredKeys]

    def part(self, start: int, stop: int) -> RunColumns:
        """Those of some of the runs."""
        counts, begin, append_us, versions, keys = self
        cut = slice(start, stop)
        return RunColumns(counts[cut], begin[cut], append_us[cut], versions[cut], keys[cut])


_LIST = msgspec.json.Decoder(list[str | None])


class AppendRun(NamedTuple):
    """The entries of one append request; ``keys`` is one key or None for all, or one for each."""

    seq: int
    append_us: int
    version: int
    keys: Keys
    payloads: Sequence[Payload]


class RowGroupBuilder:
    """The entries of one row group so far."""

    def __init__(self, schema: Any, first_seq: int, split: Split) -> None:
        self._schema = schema
        self._split = split
        self.first_seq = first_seq
        #: How many entries there are, and how many bytes they have at most.
        self.rows = self.bytes = 0
        self._pieces: list[Any] = []
        self._begin()

    def add(self, notes: RunColumns, bodies: Sequence[bytes], counts: Sequence[int]) -> None:
        """Take runs from JSON bodies that hold so many entries each; they are cut later and all at once."""
        if self._payloads:
            self._end()
        self._note(notes)
        self._bodies += bodies
        self._counts += counts
        self.rows += sum(counts)
        self.bytes += sum(map(len, bodies))

    def extend(self, run: AppendRun, start: int, stop: int, size: int) -> None:
        """Take entries ``start`` to ``stop`` of a run, which have so many payload bytes."""
        if self._bodies:
            self._end()
        _, append_us, version, keys, payloads = run
        self._payloads += payloads[start:stop]
        keys = keys if keys is None or isinstance(keys, str) else keys[start:stop]
        self._note(RunColumns([stop - start], [not start], [append_us], [version], [keys]))
        self.rows += stop - start
        self.bytes += size

    def take(self, batch: Any, size: int) -> None:
        """Take rows of another segment, which have so many payload bytes."""
        self._end()
        self._pieces.append(batch)
        self.rows += batch.num_rows
        self.bytes += size

    def table(self) -> Any:
        """The row group as columns; nothing can be added any more."""
        self._end()
        table = pa.Table.from_batches(self._pieces, self._schema).combine_chunks()
        if self._schema.field(layout.PAYLOAD).type == pa.string():
            table.column(layout.PAYLOAD).validate(full=True)  # raises for what is not UTF-8
        return table

    def _begin(self) -> None:
        self._payloads: list[Payload] = []
        self._bodies: list[bytes] = []
        self._counts: list[int] = []
        self._notes: tuple[list[Any], ...] = tuple([] for _ in RunColumns._fields)

    def _note(self, notes: RunColumns) -> None:
        for held, more in zip(self._notes, notes, strict=True):
            held.extend(more)

    def _end(self) -> None:
        """Turn what was gathered run by run into columns."""
        every, begins, times, versions, keys = self._notes
        if not every:
            return
        if times != sorted(times):
            raise ValueError("an entry was appended before the one it follows")
        counts = np.fromiter(every, np.int64, len(every))
        kind = self._schema.field(layout.PAYLOAD).type
        payloads = cut(self._bodies, self._counts, self._split) if self._bodies else pieces(kind, self._payloads)
        first = self.first_seq + self.rows - len(payloads)
        columns = [
            pa.arange(first, first + len(payloads)),
            spread(layout.TIME, np.fromiter(times, np.int64, len(times)), counts),
            _keys(every, keys),
            spread(pa.int32(), np.fromiter(versions, np.int32, len(versions)), counts),
            _marks(counts, begins),
            payloads,
        ]
        self._pieces.append(pa.record_batch(columns, schema=self._schema))
        self._begin()


def _keys(counts: Sequence[int], runs: Sequence[StoredKeys]) -> Any:
    """The key of each entry."""
    if runs.count(None) == len(runs):
        return pa.nulls(sum(counts), pa.string())
    lists = [keys for keys in runs if isinstance(keys, msgspec.Raw)]
    strings = cut_keys(lists, sum(counts)) if len(lists) == len(runs) else None
    if strings is not None:
        return strings
    every = (
        repeat(keys, count) if keys is None or isinstance(keys, str) else decode_keys(keys)
        for keys, count in zip(runs, counts, strict=True)
    )
    return texts(list(chain.from_iterable(every)))


def decode_keys(keys: Sequence[str | None] | msgspec.Raw) -> Sequence[str | None]:
    """Keys that may be a JSON list still, one by one."""
    return _LIST.decode(keys) if isinstance(keys, msgspec.Raw) else keys


def _marks(counts: Any, begins: Sequence[bool]) -> Any:
    """Whether each entry is the first of its run."""
    ends = np.cumsum(counts)
    marks = np.zeros(ends[-1], np.uint8)
    marks[ends - counts] = begins
    return flags(marks)


def payload_bytes(batch: Any) -> int:
    """How many payload bytes a batch holds."""
    return int(pc.sum(pc.binary_length(batch.column(layout.PAYLOAD))).as_py())
