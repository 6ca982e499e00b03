"""Files as JSON rows, in chunks: CSV, TSV, lines of JSON, arrays of JSON, and Parquet, read by Arrow and DuckDB.

JSON is taken as it is spelled.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from csv import reader
from pathlib import Path
from typing import Any, Literal

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from headrace.client.importer.facts import DATE_TIME
from headrace.client.json_rows import Column, identifier, join_members, member_name, quote, select_rows
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
#: Rows that are read at once, and bytes of lines.
CHUNK_ROWS = 65_536
_BLOCK_BYTES = 16 * 1024 * 1024


def find_files(paths: Sequence[str]) -> list[Path]:
    """The files named, and those in the directories named, in order."""
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(child for child in path.rglob("*") if child.is_file() and _suffix(child) in _SUFFIXES)
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


def _suffix(path: Path) -> str:
    return Path(path.stem).suffix.lower() if path.suffix.lower() in _COMPRESSED else path.suffix.lower()


def _is_array(path: Path) -> bool:
    with pa.input_stream(str(path)) as file:
        return bool(file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["))


_DELIMITERS: dict[Format, str] = {"csv": ",", "tsv": "\t"}
_NUMBER = r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?"
_MOMENT = DATE_TIME.replace("{", "{{").replace("}", "}}")  # the tests are formatted
#: What the values of a CSV column may be, and how many of them are.
_TESTS = {
    "boolean": "count(*) FILTER ({column} IN ('true', 'false', 'True', 'False', 'TRUE', 'FALSE'))",
    "number": f"count(*) FILTER (regexp_full_match({{column}}, {quote(_NUMBER)}))",
    "moment": f"count(*) FILTER (regexp_full_match({{column}}, {quote(_MOMENT)}) "
    "AND try_cast({column} AS TIMESTAMPTZ) IS NOT NULL)",
}
#: Turns a moment of ISO 8601 into one of RFC 3339, digit by digit; without a zone it is in UTC.
_RFC3339_STEPS = (
    (r"(T\d\d:\d\d)([Z+-]|$)", r"\1:00\2"),
    (r"([+-]\d\d):?(\d\d)$", r"\1:\2"),
    (r"(T[0-9:.]+)$", r"\1Z"),
)


def _rfc3339(text: str) -> str:
    """SQL for a moment as RFC 3339."""
    sql = f"replace(upper({text}), ' ', 'T')"
    for pattern, replacement in _RFC3339_STEPS:
        sql = f"regexp_replace({sql}, {quote(pattern)}, {quote(replacement)})"
    return sql


def _csv_text(kind: str, column: str) -> str:
    """SQL for the JSON text of a CSV value; NULL where it is empty."""
    match kind:
        case "boolean":
            return f"lower({column})"
        case "number":
            return column
        case "moment":
            return f"'\"' || {_rfc3339(column)} || '\"'"
    return f"to_json({column})::VARCHAR"


def _header(path: Path, delimiter: str) -> list[str]:
    """The names of the columns of a file, from its first line."""
    with pa.input_stream(str(path), compression="detect") as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        names = next(reader(text, delimiter=delimiter), [])
        text.detach()
    if not names:
        raise ValueError(f"{path} is empty: its first line must name the columns")
    for number, name in enumerate(names, 1):
        if not name or names.count(name) > 1:
            raise ValueError(f"{path}: column {number} is named {name!r}: every column needs a name of its own")
    return names


def _widen(kind: str, other: str) -> str:
    """The kind that holds the values of both."""
    if "null" in (kind, other) or kind == other:
        return other if kind == "null" else kind
    return "text"


class RowReader:
    """Reads the rows of files; what CSV columns hold is decided over all files at once."""

    def __init__(self, files: Sequence[Path], file_format: Format | None = None) -> None:
        self.formats = {path: file_format or format_of(path) for path in files}
        self._connection = duckdb.connect()
        #: For queries over rows while others are read: a connection has one result at a time.
        self.cursor = self._connection.cursor()
        self._kinds = self._merge_kinds()

    def close(self) -> None:
        """Let go of what was read."""
        self._connection.close()

    def chunks(self) -> Iterator[Chunk]:
        """The rows of all files, in order."""
        for path, file_format in self.formats.items():
            if file_format == "jsonl":
                yield from self._read_lines(path)
            elif file_format == "json":
                objects = f"SELECT json::VARCHAR AS row FROM read_json_objects({quote(str(path))}, format = 'array')"
                yield from self._read_query(path, objects)
            elif file_format == "parquet":
                yield from self._read_query(path, self._parquet_rows(path))
            else:
                yield from self._read_query(path, self._csv_rows(path, file_format))
                yield Chunk(str(path), pa.array([], pa.int64()), pa.array([], pa.string()), self._rejected(path))

    # -- lines of JSON

    def _read_lines(self, path: Path) -> Iterator[Chunk]:
        bad: list[BadRow] = []

        def refuse(row: csv.InvalidRow) -> str:
            bad.append(BadRow(str(path), row.number or 0, row.text, "the line has a control character"))
            return "skip"

        read = csv.ReadOptions(column_names=["row"], block_size=_BLOCK_BYTES, use_threads=False)
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
        self.cursor.register("import_lines", pa.table({"row": rows}))
        valid = self.cursor.sql("SELECT json_valid(row) AS valid FROM import_lines").to_arrow_table().column(0)
        self.cursor.unregister("import_lines")
        is_bad = pc.and_(pc.invert(valid.combine_chunks()), pc.not_equal(pc.utf8_trim_whitespace(rows), ""))
        for number, text in zip(numbers[np.asarray(is_bad)].tolist(), rows.filter(is_bad).to_pylist(), strict=True):
            bad.append(BadRow(str(path), number, text, "not JSON"))
        kept = valid.combine_chunks()
        return Chunk(str(path), pa.array(numbers).filter(kept), rows.filter(kept), bad)

    def _check_lines_of_bytes(self, path: Path, numbers: Any, lines: pa.Array, bad: list[BadRow]) -> Chunk:
        """The same where a line is not UTF-8."""
        decodable = []
        for number, line in zip(numbers.tolist(), lines.to_pylist(), strict=True):
            try:
                line.decode()
            except UnicodeDecodeError as reason:
                bad.append(BadRow(str(path), number, line.decode(errors="replace"), f"not UTF-8: {reason.reason}"))
                decodable.append(False)
            else:
                decodable.append(True)
        return self._check_lines(path, numbers[decodable], lines.filter(pa.array(decodable)), bad)

    # -- what DuckDB reads

    def _read_query(self, path: Path, query: str) -> Iterator[Chunk]:
        number = 1
        for batch in self._connection.sql(query).to_arrow_reader(CHUNK_ROWS):
            numbers = pa.array(np.arange(number, number + batch.num_rows))
            number += batch.num_rows
            yield Chunk(str(path), numbers, batch.column(0), [])

    def _csv(self, path: Path, file_format: Format, *, store_rejects: bool) -> str:
        columns = ", ".join(f"{quote(name)}: 'VARCHAR'" for name in _header(path, _DELIMITERS[file_format]))
        options = ["header = true", "auto_detect = false", "quote = '\"'", "escape = '\"'", f"columns = {{{columns}}}"]
        options.append(f"delim = {quote(_DELIMITERS[file_format])}")
        options.append("store_rejects = true" if store_rejects else "ignore_errors = true")
        return f"read_csv({quote(str(path))}, {', '.join(options)})"

    def _columns(self, relation: str) -> list[tuple[str, Any]]:
        described = self._connection.sql(f"SELECT * FROM {relation} LIMIT 0")
        return list(zip(described.columns, described.types, strict=True))

    def _merge_kinds(self) -> dict[str, str]:
        """What the columns of CSV files hold: the narrowest kind that all values of all files have."""
        kinds: dict[str, str] = {}
        for path, file_format in self.formats.items():
            if file_format in _DELIMITERS:
                for name, kind in self._column_kinds(self._csv(path, file_format, store_rejects=False)).items():
                    kinds[name] = _widen(kinds.get(name, "null"), kind)
        return kinds

    def _column_kinds(self, relation: str) -> dict[str, str]:
        names = [name for name, _ in self._columns(relation)]
        tests = [
            test.format(column=identifier(name)) for name in names for test in ("count({column})", *_TESTS.values())
        ]
        counts = iter(self._connection.sql(f"SELECT {', '.join(tests)} FROM {relation}").fetchall()[0])
        kinds = {}
        for name in names:
            total, fits = next(counts), {kind: next(counts) for kind in _TESTS}
            kinds[name] = next((kind for kind in _TESTS if fits[kind] == total), "text") if total else "null"
        return kinds

    def _csv_rows(self, path: Path, file_format: Format) -> str:
        relation = self._csv(path, file_format, store_rejects=True)
        members = [
            f"{member_name(name)} || coalesce({_csv_text(self._kinds[name], identifier(name))}, 'null')"
            for name, _ in self._columns(relation)
        ]
        return f"SELECT {join_members(members)} AS row FROM {relation}"

    def _rejected(self, path: Path) -> list[BadRow]:
        query = (
            "SELECT line, any_value(csv_line), any_value(error_message) FROM reject_errors GROUP BY line ORDER BY line"
        )
        rejected = self._connection.sql(query).fetchall()
        self._connection.execute("DROP TABLE reject_errors; DROP TABLE reject_scans")
        return [BadRow(str(path), line, text or "", reason.splitlines()[0]) for line, text, reason in rejected]

    def _parquet_rows(self, path: Path) -> str:
        relation = f"read_parquet({quote(str(path))})"
        return select_rows(relation, [Column(name, identifier(name), kind) for name, kind in self._columns(relation)])
