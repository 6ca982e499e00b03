"""Appending rows to a stream, each exactly once however often an import is stopped and begun again.

The rows of an import are cut into batches in the same way each time, and the batches are the requests of one producer
whose name is a hash of the files. The server takes each number once, and says which one it has taken last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headrace.client import requests
from headrace.client.client import Client, Stream
from headrace.client.importer.facts import FieldFacts, read_facts
from headrace.client.importer.prefetch import READ_AHEAD, prefetch
from headrace.client.importer.reader import BadRow, Chunk, RowReader
from headrace.client.retry import Backoff, is_transient
from headrace.errors import BadRequest, HeadraceError, TooLarge
from headrace.types import JSON

#: A request has at most so many rows and bytes. Another number would cut the rows of an interrupted import anew.
BATCH_ROWS, BATCH_BYTES = 10_000, 4 * 1024 * 1024
#: How long a server that does not answer is waited for.
_RETRY_FOR_S = 120.0
_READ_BYTES = 1024 * 1024
#: How many requests are made while the server works on one.
REQUESTS_AHEAD = 3


class ImportResult(msgspec.Struct, frozen=True):
    """How many rows were appended by this run, were there from an earlier one, and could not be appended."""

    appended: int
    already_there: int
    rejected: int
    #: The end of the stream; None where no row was sent.
    next_offset: str | None


class RowBatch(NamedTuple):
    """Rows of one request, with the file and the number of each."""

    rows: pa.Array
    numbers: pa.Array
    #: Where the rows of each file end.
    paths: tuple[tuple[int, str], ...]

    def locate(self, index: int) -> tuple[str, int]:
        """The file and the number of a row."""
        path = next(path for end, path in self.paths if index < end)
        return path, self.numbers[index].as_py()


def scan(reader: RowReader, on_rows: Callable[[int], None], on_bad: Callable[[BadRow], None]) -> FieldFacts:
    """Return the facts of all rows; call ``on_rows`` with each count of rows read, and ``on_bad`` with each bad row."""
    facts = reader.read_columns(on_rows, on_bad) if reader.has_columns else FieldFacts()
    with prefetch(reader.chunks(of_columns=False), READ_AHEAD) as chunks:
        for chunk in chunks:
            for bad in chunk.bad:
                on_bad(bad)
            if len(chunk.rows):
                facts = facts.merge(read_facts(reader.cursor, chunk.rows))
            on_rows(len(chunk.rows))
    return facts


def scan_stream(stream: Stream, on_rows: Callable[[int], None]) -> FieldFacts:
    """Return the facts of all events of a JSON stream; call ``on_rows`` with each count of events read."""
    facts = FieldFacts()
    with duckdb.connect() as connection:
        for batch in stream.read():
            texts = pa.array([text.decode() for text in batch.raw_items], pa.string())
            facts = facts.merge(read_facts(connection, texts)) if len(texts) else facts
            on_rows(len(texts))
    return facts


class Importer:
    """Appends the rows of a reader to a stream."""

    def __init__(self, client: Client, stream: str, reader: RowReader) -> None:
        self._client = client
        self._stream = stream
        self._reader = reader
        self._producer = f"import-{_hash_files(reader)}"
        self._rejected = self._next_seq = 0
        self._offset: str | None = None

    def run(self, on_rows: Callable[[int], None], on_bad: Callable[[BadRow], None]) -> ImportResult:
        """Append all rows; call ``on_bad`` with each row that is no JSON or that the server refuses."""

        def reject(bad: BadRow) -> None:
            self._rejected += 1
            on_bad(bad)

        appended = already_there = seq = 0
        with prefetch(_make_requests(self._reader), REQUESTS_AHEAD) as requests_ahead:
            for ready in requests_ahead:
                if isinstance(ready, BadRow):
                    reject(ready)
                    continue
                batch, body = ready
                if seq < self._next_seq:  # the server has it, as it said when it was given the first batch
                    already_there += len(batch.rows)
                    seq += 1
                else:
                    count, is_new = self._append(batch, body, seq, reject)
                    appended += count if is_new else 0
                    already_there += 0 if is_new else count
                    seq += 1 if count else 0
                on_rows(len(batch.rows))
        return ImportResult(appended, already_there, self._rejected, self._offset)

    def _append(self, batch: RowBatch, body: bytes, seq: int, reject: Callable[[BadRow], None]) -> tuple[int, bool]:
        """Append those rows of a batch that the server takes; returns how many, and whether they are new there."""
        kept = np.arange(len(batch.rows))
        while len(kept):
            try:
                return len(kept), self._send(body, seq)
            except BadRequest as refusal:
                failures = refusal.facts.get("failures")
                if not failures:
                    raise
                reasons: dict[int, list[str]] = {}
                for failure in failures:
                    where = f"{failure['pointer']}: " if failure["pointer"] else ""
                    reasons.setdefault(failure["index"], []).append(where + failure["reason"])
                for index, why in reasons.items():
                    path, number = batch.locate(int(kept[index]))
                    reject(BadRow(path, number, batch.rows[int(kept[index])].as_py(), "; ".join(why)))
                kept = np.delete(kept, list(reasons))
                body = _body(batch.rows.take(pa.array(kept)))
        if len(batch.rows) >= BATCH_ROWS:
            path, number = batch.locate(0)
            raise BadRequest(
                f"none of {len(batch.rows):,} rows from row {number} of {path} on fits the stream's schema"
            )
        return 0, True

    def _send(self, body: bytes, seq: int) -> bool:
        """Send one batch until the server has it; returns whether it was new."""
        request = requests.produce(self._stream, body, JSON, key="", producer_id=self._producer, epoch=0, seq=seq)
        retries = Backoff(_RETRY_FOR_S)
        while True:
            try:
                answer = self._client.transport.send(request).checked()
                break
            except TooLarge as error:
                raise TooLarge(
                    f"{error.message}: raise limits.body_bytes of the server to {BATCH_BYTES * 2}"
                ) from error
            except HeadraceError as error:
                if not is_transient(error):
                    raise
                time.sleep(retries.pause_s(error))
        self._offset = answer.header("stream-next-offset")
        self._next_seq = max(self._next_seq, int(answer.header("producer-seq")) + 1)
        return answer.status != 204  # 204 is a producer's request that was there already


def _make_requests(reader: RowReader) -> Iterator[tuple[RowBatch, bytes] | BadRow]:
    """The batches of all rows with the bodies of their requests, and between them the rows that are none."""
    bad: list[BadRow] = []
    for batch in cut_batches(reader.chunks(), bad.append):
        yield from bad
        bad.clear()
        yield batch, _body(batch.rows)
    yield from bad


def cut_batches(chunks: Iterator[Chunk], reject: Callable[[BadRow], None]) -> Iterator[RowBatch]:
    """The rows of chunks in batches that depend on the rows alone, whatever the chunks are."""
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


def _ends(rows: pa.Array) -> Iterator[int]:
    """Where batches end."""
    total = np.cumsum(pc.binary_length(rows).to_numpy() + 1)
    start = 0
    while start < len(rows):
        before = int(total[start - 1]) if start else 0
        by_bytes = int(np.searchsorted(total, before + BATCH_BYTES, side="right"))
        start = max(start + 1, min(start + BATCH_ROWS, by_bytes))
        yield min(start, len(rows))


def _slice(rows: pa.Array, numbers: pa.Array, paths: list[tuple[int, str]], start: int, end: int) -> RowBatch:
    return RowBatch(rows[start:end], numbers[start:end], tuple(_shift(paths, start)))


def _shift(paths: list[tuple[int, str]], start: int) -> list[tuple[int, str]]:
    return [(end - start, path) for end, path in paths if end > start]


def _body(rows: pa.Array) -> bytes:
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows), ",")
    return b"".join((b"[", joined[0].as_buffer(), b"]"))


def _hash_files(reader: RowReader) -> str:
    digest = xxhash.xxh3_128()
    for path, file_format in reader.formats.items():
        digest.update(f"{file_format} {BATCH_ROWS} {BATCH_BYTES};".encode())
        with Path(path).open("rb") as file:
            while piece := file.read(_READ_BYTES):
                digest.update(piece)
    return digest.hexdigest()
