"""Appending rows to a stream, each exactly once however often an import is stopped and begun again.

The producer of the batches is named after a hash of the files.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import duckdb
import msgspec
import pyarrow as pa
import xxhash

from headrace.client.answers import Answer
from headrace.client.client import Client, Stream
from headrace.client.importer.facts import FieldFacts, read_facts
from headrace.client.importer.prefetch import READ_AHEAD, prefetch
from headrace.client.importer.proposal import Proposal, propose
from headrace.client.importer.reader import RowReader
from headrace.client.requests import Request
from headrace.client.retry import Backoff, is_transient
from headrace.client.row_batches import BATCH_BYTES, BATCH_ROWS, BadRow, RefusedRow, RowAppends, RowBatch, cut_batches
from headrace.errors import BadRequest, HeadraceError, TooLarge
from headrace.types import JSON, media_type

#: How long a server that does not answer is waited for.
_RETRY_FOR_S = 120.0
_READ_BYTES = 1024 * 1024
#: How many threads find the facts of chunks.
SCAN_THREADS = 2
#: How many batches are read while the server works on one.
BATCHES_AHEAD = 3


class ImportResult(msgspec.Struct, frozen=True):
    """How many rows were appended by this run, were there from an earlier one, and could not be appended."""

    appended: int
    already_there: int
    rejected: int
    #: The end of the stream; None where no row was sent.
    next_offset: str | None


def scan(reader: RowReader, on_rows: Callable[[int], None], on_bad: Callable[[BadRow], None]) -> FieldFacts:
    """Return the facts of all rows; call ``on_rows`` with each count of rows read, and ``on_bad`` with each bad row."""
    facts = reader.read_columns(on_rows, on_bad) if reader.has_columns else FieldFacts()
    chunks, pending = reader.chunks(of_columns=False), deque[Future[FieldFacts]]()
    with prefetch(chunks, READ_AHEAD) as chunks_ahead, ThreadPoolExecutor(SCAN_THREADS, "headrace-import") as pool:
        for chunk in chunks_ahead:
            for bad in chunk.bad:
                on_bad(bad)
            if len(pending) == SCAN_THREADS:
                facts = facts.merge(pending.popleft().result())
            if len(chunk.rows):
                pending.append(pool.submit(read_facts, reader.cursor.cursor(), chunk.rows))
            on_rows(len(chunk.rows))
        for future in pending:
            facts = facts.merge(future.result())
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


def infer_schema(
    stream: Stream,
    *,
    timestamp: str | None = None,
    is_open: bool = False,
    on_rows: Callable[[int], None] = lambda count: None,
) -> Proposal:
    """Propose a schema, search fields and a rollup that fit every event of a JSON stream.

    ``stream.evolve(proposal.schema, search=proposal.search, first_on_data=True)`` installs them.
    """
    content_type = stream.info().content_type
    if media_type(content_type) != JSON:
        raise BadRequest(f"{stream.name} holds {content_type}, which has no schema")
    facts = scan_stream(stream, on_rows)
    if not facts.count:
        raise BadRequest(f"{stream.name} holds no event")
    return propose(facts, timestamp=timestamp, is_open=is_open)


class Importer:
    """Appends the rows of a reader to a stream."""

    def __init__(self, client: Client, stream: str, reader: RowReader) -> None:
        self._client = client
        self._stream = stream
        self._reader = reader
        self._rejected = 0

    def run(self, on_rows: Callable[[int], None], on_bad: Callable[[BadRow], None]) -> ImportResult:
        """Append all rows; call ``on_bad`` with each row that is no JSON or that the server refuses."""

        def reject(bad: BadRow) -> None:
            self._rejected += 1
            on_bad(bad)

        with prefetch(_read_batches(self._reader), BATCHES_AHEAD) as items:
            appends = RowAppends(
                self._stream,
                f"import-{_hash_files(self._reader)}",
                _take_batches(items, reject),
                on_refused=lambda row: reject(_bad_row(row)),
                on_rows=on_rows,
            )
            while (request := appends.next_request()) is not None:
                try:
                    appends.accept(self._send(request))
                except (BadRequest, TooLarge) as refusal:
                    appends.refuse(refusal)
        return ImportResult(appends.appended, appends.already_there, self._rejected, appends.next_offset)

    def _send(self, request: Request) -> Answer:
        """Send one batch until the server has it."""
        retries = Backoff(_RETRY_FOR_S)
        while True:
            try:
                return self._client.transport.send(request).checked()
            except HeadraceError as error:
                if not is_transient(error):
                    raise
                time.sleep(retries.pause_s(error))


def _read_batches(reader: RowReader) -> Iterator[RowBatch | BadRow]:
    """The batches of all rows, and between them the rows that are none."""
    bad: list[BadRow] = []
    for batch in cut_batches(reader.chunks(), bad.append):
        yield from bad
        bad.clear()
        yield batch
    yield from bad


def _take_batches(items: Iterator[RowBatch | BadRow], reject: Callable[[BadRow], None]) -> Iterator[RowBatch]:
    for item in items:
        if isinstance(item, BadRow):
            reject(item)
        else:
            yield item


def _bad_row(row: RefusedRow) -> BadRow:
    reasons = [f"{pointer}: {reason}" if pointer else reason for pointer, reason in row.failures]
    return BadRow(row.path, row.number, row.text, "; ".join(reasons))


def _hash_files(reader: RowReader) -> str:
    digest = xxhash.xxh3_128()
    for path, file_format in reader.formats.items():
        digest.update(f"{file_format} {BATCH_ROWS} {BATCH_BYTES};".encode())
        with Path(path).open("rb") as file:
            while piece := file.read(_READ_BYTES):
                digest.update(piece)
    return digest.hexdigest()
