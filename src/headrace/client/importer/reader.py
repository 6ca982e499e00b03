"""Files as JSON rows, in chunks: CSV, TSV, lines of JSON, arrays of JSON, and Parquet, read by Arrow and DuckDB.

JSON is taken as it is spelled. Of other formats, values that JSON lacks are written so that nothing is lost: moments as
RFC 3339 in UTC, dates as ISO 8601, decimals and large integers with all their digits, bytes in base64.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from csv import reader
from pathlib import Path, PurePath
from typing import Any, Literal

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from headrace.client.importer.columns import ColumnFacts, encode_rows
from headrace.client.importer.facts import MAX_MEMBERS, FieldFacts
from headrace.client.importer.prefetch import READ_AHEAD, prefetch
from headrace.client.json_rows import Column, identifier, quote, select_rows
from headrace.client.row_batches import BadRow, Chunk

Format = Literal["csv", "tsv", "jsonl", "json", "parquet"]

_SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSED = (".gz", ".zst")
#: A chunk has about so many bytes, and a number of rows that goes with the rows at the beginning of the file.
_CHUNK_BYTES = 16 * 1024 * 1024
_MIN_CHUNK_ROWS, _MAX_CHUNK_ROWS = 2_048, 65_536
_PROBED_BYTES = 1024 * 1024


def find_files(paths: Sequence[str]) -> list[Path]:
    """The files named, and those in the directories named, in order."""
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(child for child in path.rglob("*") if child.is_file() and has_format(child))
            if not inside:
                raise ValueError(f"{path} holds no file that can be imported ({', '.join(_SUFFIXES)})")
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            raise ValueError(f"there is no file {path}")
    return files


def format_of(path: Path) -> Format:
    """The format of a file by its name; the first character says whether a JSON file is an array or has lines."""
    file_format = _SUFFIXES.get(_suffix(path))
    if file_format is None:
        raise ValueError(f"{path}: the name does not tell the format; pass --format csv, tsv, jsonl, json or parquet")
    if file_format == "json" and not _is_array(path):
        return "jsonl"
    return file_format


def has_format(path: PurePath) -> bool:
    """Whether the name of a file tells its format."""
    return _suffix(path) in _SUFFIXES


def _suffix(path: PurePath) -> str:
    return PurePath(path.stem).suffix.lower() if path.suffix.lower() in _COMPRESSED else path.suffix.lower()


def _is_array(path: Path) -> bool:
    with pa.input_stream(str(path)) as file:
        return bool(file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["))


_DELIMITERS: dict[Format, str] = {"csv": ",", "tsv": "\t"}


class RowReader:
    """Reads the rows of files; what CSV columns hold is decided over all files at once.

    Files are read once for facts and once for their rows, and a thread reads ahead of who takes the rows. It holds no
    more than ``READ_AHEAD + 1`` chunks: those that are ready, and the one being read.
    """

    def __init__(
        self,
        files: Sequence[Path],
        file_format: Format | None = None,
        names: Mapping[Path, str] | None = None,
        text_columns: Collection[str] = (),
    ) -> None:
        """``names`` are those that people know files by, where they are copies; cells of ``text_columns`` are text."""
        self._names, self._text_columns = names or {}, frozenset(text_columns)
        self.formats = {path: file_format or format_of(path) for path in files}
        self._connection = duckdb.connect()
        #: For queries over rows while others are read: a connection has one result at a time, in one thread.
        self.cursor = self._connection.cursor()
        self._lines_cursor = self._connection.cursor()
        self._columns: dict[str, ColumnFacts] | None = None
        for path in self._tables():
            self._read_header(path)

    def _name(self, path: Path) -> str:
        return self._names.get(path, str(path))

    def close(self) -> None:
        """Let go of what was read."""
        self._connection.close()

    @property
    def has_columns(self) -> bool:
        """Whether there is a file with columns of texts, CSV or TSV."""
        return bool(self._tables())

    @property
    def tables(self) -> frozenset[str]:
        """The files with columns of texts, by the names that chunks have."""
        return frozenset(map(self._name, self._tables()))

    def read_columns(self, on_rows: Callable[[int], None], on_bad: Callable[[BadRow], None]) -> FieldFacts:
        """Return the facts of all rows of CSV and TSV files, which tell how their values are written as JSON."""
        columns: dict[str, ColumnFacts] = {}
        rows = 0
        for path in self._tables():
            with prefetch(self._csv_batches(path), READ_AHEAD) as batches:
                for batch in batches:
                    for name, column in zip(batch.schema.names, batch.columns, strict=True):
                        facts = ColumnFacts.of_text() if name in self._text_columns else ColumnFacts()
                        columns.setdefault(name, facts).add(self.cursor, column)
                    rows += batch.num_rows
                    on_rows(batch.num_rows)
            for bad in self._rejected(path):
                on_bad(bad)
        self._columns = columns
        members = {name: column.field() for name, column in columns.items()}
        is_map = len(members) > MAX_MEMBERS
        return FieldFacts(types=Counter(object=rows), members={} if is_map else members, is_map=is_map)

    def chunks(self, *, of_columns: bool = True) -> Iterator[Chunk]:
        """The rows of all files, in order; without those of CSV and TSV files where ``of_columns`` is false."""
        if of_columns and self.has_columns and self._columns is None:
            self.read_columns(lambda _: None, lambda _: None)
        for path, file_format in self.formats.items():
            if file_format == "jsonl":
                yield from self._read_lines(path)
            elif file_format == "json":
                objects = f"SELECT json::VARCHAR AS row FROM read_json_objects({quote(str(path))}, format = 'array')"
                yield from self._read_query(path, objects)
            elif file_format == "parquet":
                yield from self._read_query(path, self._parquet_rows(path))
            elif of_columns:
                yield from self._read_csv(path)

    # -- lines of JSON

    def _read_lines(self, path: Path) -> Iterator[Chunk]:
        bad: list[BadRow] = []

        def refuse(row: csv.InvalidRow) -> str:
            bad.append(BadRow(self._name(path), row.number or 0, row.text, "the line has a control character"))
            return "skip"

        read = csv.ReadOptions(column_names=["row"], block_size=_CHUNK_BYTES, use_threads=False)
        parse = csv.ParseOptions(
            delimiter="\x01", quote_char=False, ignore_empty_lines=False, invalid_row_handler=refuse
        )
        convert = csv.ConvertOptions(column_types={"row": pa.binary()}, strings_can_be_null=False)
        number = 1
        with pa.input_stream(str(path), compression="detect") as file:
            for batch in csv.open_csv(file, read, parse, convert):
                numbers = np.arange(number, number + batch.num_rows + len(bad))
                skipped = [row.number - number for row in bad]
                number += len(numbers)
                yield self._check_lines(path, np.delete(numbers, skipped), batch.column(0), bad)
                bad = []

    def _check_lines(self, path: Path, numbers: Any, lines: pa.Array, bad: list[BadRow]) -> Chunk:
        try:
            rows = lines.cast(pa.string())
        except pa.ArrowInvalid:
            return self._check_lines_of_bytes(path, numbers, lines, bad)
        self._lines_cursor.register("import_lines", pa.table({"row": rows}))
        valid = self._lines_cursor.sql("SELECT json_valid(row) AS valid FROM import_lines").to_arrow_table().column(0)
        self._lines_cursor.unregister("import_lines")
        is_bad = pc.and_(pc.invert(valid.combine_chunks()), pc.not_equal(pc.utf8_trim_whitespace(rows), ""))
        for number, text in zip(numbers[np.asarray(is_bad)].tolist(), rows.filter(is_bad).to_pylist(), strict=True):
            bad.append(BadRow(self._name(path), number, text, "not JSON"))
        kept = valid.combine_chunks()
        return Chunk(self._name(path), pa.array(numbers).filter(kept), rows.filter(kept), bad)

    def _check_lines_of_bytes(self, path: Path, numbers: Any, lines: pa.Array, bad: list[BadRow]) -> Chunk:
        """The same where a line is not UTF-8."""
        decodable = []
        for number, line in zip(numbers.tolist(), lines.to_pylist(), strict=True):
            try:
                line.decode()
            except UnicodeDecodeError as reason:
                bad.append(
                    BadRow(self._name(path), number, line.decode(errors="replace"), f"not UTF-8: {reason.reason}")
                )
                decodable.append(False)
            else:
                decodable.append(True)
        return self._check_lines(path, numbers[decodable], lines.filter(pa.array(decodable)), bad)

    # -- what DuckDB reads

    def _chunk_rows(self, path: Path) -> int:
        """How many rows make a chunk; rows are as long as at the beginning of the file, or as Parquet says."""
        if self.formats[path] == "parquet":
            name = quote(str(path))
            (sizes,) = self._lines_cursor.sql(
                f"""SELECT (SELECT sum(total_uncompressed_size)::BIGINT FROM parquet_metadata({name})),
                           (SELECT sum(num_rows)::BIGINT FROM parquet_file_metadata({name}))"""
            ).fetchall()
            size, rows = (number or 0 for number in sizes)
        else:
            with pa.input_stream(str(path), compression="detect") as file:
                probe = file.read(_PROBED_BYTES)
            size, rows = len(probe), probe.count(b"\n")
        return min(max(_CHUNK_BYTES * rows // max(size, 1), _MIN_CHUNK_ROWS), _MAX_CHUNK_ROWS)

    def _read_query(self, path: Path, query: str) -> Iterator[Chunk]:
        number = 1
        for batch in self._connection.sql(query).to_arrow_reader(self._chunk_rows(path)):
            numbers = pa.array(np.arange(number, number + batch.num_rows))
            number += batch.num_rows
            yield Chunk(self._name(path), numbers, batch.column(0), [])

    def _tables(self) -> list[Path]:
        return [path for path, file_format in self.formats.items() if file_format in _DELIMITERS]

    def _read_header(self, path: Path) -> list[str]:
        """The names of the columns of a file, from its first line."""
        with pa.input_stream(str(path), compression="detect") as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
            names = next(reader(text, delimiter=_DELIMITERS[self.formats[path]]), [])
            text.detach()
        if not names:
            raise ValueError(f"{self._name(path)} is empty: its first line must name the columns")
        for number, name in enumerate(names, 1):
            if not name or names.count(name) > 1:
                own = "every column needs a name of its own"
                raise ValueError(f"{self._name(path)}: column {number} is named {name!r}: {own}")
        return names

    def _csv_batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        delimiter = _DELIMITERS[self.formats[path]]
        columns = ", ".join(f"{quote(name)}: 'VARCHAR'" for name in self._read_header(path))
        options = ["header = true", "auto_detect = false", "quote = '\"'", "escape = '\"'", f"columns = {{{columns}}}"]
        options += [f"delim = {quote(delimiter)}", "store_rejects = true"]
        relation = f"read_csv({quote(str(path))}, {', '.join(options)})"
        yield from self._connection.sql(f"SELECT * FROM {relation}").to_arrow_reader(self._chunk_rows(path))

    def _read_csv(self, path: Path) -> Iterator[Chunk]:
        assert self._columns is not None
        number = 1
        for batch in self._csv_batches(path):
            numbers = pa.array(np.arange(number, number + batch.num_rows))
            number += batch.num_rows
            yield Chunk(self._name(path), numbers, encode_rows(batch, self._columns), [])
        yield Chunk(self._name(path), pa.array([], pa.int64()), pa.array([], pa.string()), self._rejected(path))

    def _rejected(self, path: Path) -> list[BadRow]:
        query = (
            "SELECT line, any_value(csv_line), any_value(error_message) FROM reject_errors GROUP BY line ORDER BY line"
        )
        rejected = self._connection.sql(query).fetchall()
        self._connection.execute("DROP TABLE reject_errors; DROP TABLE reject_scans")
        return [BadRow(self._name(path), line, text or "", reason.splitlines()[0]) for line, text, reason in rejected]

    def _parquet_rows(self, path: Path) -> str:
        relation = f"read_parquet({quote(str(path))})"
        described = self._connection.sql(f"SELECT * FROM {relation} LIMIT 0")
        columns = zip(described.columns, described.types, strict=True)
        return select_rows(relation, [Column(name, identifier(name), kind) for name, kind in columns])
