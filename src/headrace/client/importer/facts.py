"""What the rows of a file have in common, field by field: JSON types, how often each occurs, and hints for search.

Facts of two parts of a file merge to the facts of both, so a file of any size is read in chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.json_rows import quote

#: JSON types by the names that DuckDB has for them.
_TYPES = {
    "NULL": "null",
    "BOOLEAN": "boolean",
    "UBIGINT": "integer",
    "BIGINT": "integer",
    "HUGEINT": "integer",
    "DOUBLE": "number",
    "VARCHAR": "string",
    "ARRAY": "array",
    "OBJECT": "object",
}
#: Objects with more members than this are maps: their members are no fields.
MAX_MEMBERS = 200
#: How deep objects and arrays are looked into.
MAX_DEPTH = 8
#: More sets of members than this are not looked at one by one.
_MAX_SHAPES = 1_000
#: How many rows of a chunk are read for hints, which decide how a field is searched, not what is admitted.
_SAMPLE_ROWS = 2_000
#: A moment that RFC 3339 or ISO 8601 writes with a date and a time, and a date alone.
DATE_TIME = r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?([Zz]|[+-]\d{2}:?\d{2})?"
RFC3339 = r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})"
DATE = r"\d{4}-\d{2}-\d{2}"
#: Moments that Arrow reads, in the spelling that machines use: RFC 3339 in UTC, in capitals.
_UTC_MOMENT = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?Z$"
_MOMENTS = f"""count(*) FILTER (regexp_full_match(text, '{DATE_TIME}') AND try_cast(text AS TIMESTAMPTZ) IS NOT NULL),
               count(*) FILTER (regexp_full_match(text, '{RFC3339}') AND try_cast(text AS TIMESTAMPTZ) IS NOT NULL),
               count(*) FILTER (regexp_full_match(text, '{DATE}') AND try_cast(text AS DATE) IS NOT NULL)"""


class FieldFacts(msgspec.Struct):
    """The values of one field over some rows."""

    #: How many values of each JSON type there are.
    types: Counter[str] = msgspec.field(default_factory=Counter)
    #: How many strings are moments as ISO 8601 writes them, how many of these as RFC 3339 does, and how many are dates.
    date_times: int = 0
    rfc3339: int = 0
    dates: int = 0
    #: Of a sample of strings: the most characters, how many have white space, about how many differ, and its size.
    max_length: int = 0
    with_spaces: int = 0
    distinct: int = 0
    sampled: int = 0
    members: dict[str, FieldFacts] = {}
    #: Whether an object has so many members, or lies so deep, that its members are no fields.
    is_map: bool = False
    #: The elements of arrays; None where they were not looked into.
    items: FieldFacts | None = None

    @property
    def count(self) -> int:
        """How many values there are, nulls included."""
        return self.types.total()

    def sample(self, texts: pa.Array) -> None:
        """Take hints from the first of some strings."""
        texts = texts[:_SAMPLE_ROWS]
        self.max_length = pc.max(pc.utf8_length(texts)).as_py() or 0
        self.with_spaces = pc.sum(pc.match_substring(texts, " ")).as_py() or 0
        self.distinct, self.sampled = pc.count_distinct(texts).as_py(), len(texts)

    def merge(self, other: FieldFacts) -> FieldFacts:
        """The facts of the rows of both."""
        names = dict.fromkeys([*self.members, *other.members])
        is_map = self.is_map or other.is_map or len(names) > MAX_MEMBERS
        empty = FieldFacts()
        members = {name: self.members.get(name, empty).merge(other.members.get(name, empty)) for name in names}
        items = (self.items or empty).merge(other.items or empty) if self.items or other.items else None
        return FieldFacts(
            types=self.types + other.types,
            date_times=self.date_times + other.date_times,
            rfc3339=self.rfc3339 + other.rfc3339,
            dates=self.dates + other.dates,
            max_length=max(self.max_length, other.max_length),
            with_spaces=self.with_spaces + other.with_spaces,
            distinct=max(self.distinct, other.distinct),
            sampled=self.sampled + other.sampled,
            members={} if is_map else members,
            is_map=is_map,
            items=items,
        )


class Moments(NamedTuple):
    """How many strings are moments as ISO 8601 writes them, how many of these as RFC 3339 does, and how many dates."""

    date_times: int
    rfc3339: int
    dates: int


def count_moments(connection: duckdb.DuckDBPyConnection, texts: pa.Array) -> Moments:
    """The moments and dates among strings; none are counted where there is none among the first."""
    if are_utc_moments(texts):
        return Moments(len(texts), len(texts), 0)
    if len(texts) > _SAMPLE_ROWS and not any(count_moments(connection, texts[:_SAMPLE_ROWS])):
        return Moments(0, 0, 0)
    connection.register("import_texts", pa.table({"text": texts}))
    try:
        return Moments(*connection.sql(f"SELECT {_MOMENTS} FROM import_texts").fetchall()[0])
    finally:
        connection.unregister("import_texts")


def are_utc_moments(texts: pa.Array) -> bool:
    """Whether all strings are moments as RFC 3339 writes them in UTC, with microseconds at most."""
    if not pc.all(pc.match_substring_regex(texts, _UTC_MOMENT)).as_py():
        return False
    try:
        pc.cast(texts, pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:
        return False
    return True


def read_facts(connection: duckdb.DuckDBPyConnection, rows: pa.ChunkedArray | pa.Array) -> FieldFacts:
    """The facts of rows, given as the texts of their JSON values."""
    connection.register("import_rows", pa.table({"value": rows}))
    try:
        return _Scan(connection).read("SELECT value FROM import_rows", len(rows), 0)
    finally:
        connection.unregister("import_rows")


class _Scan:
    """Reads facts with one query for each object and each array."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def read(self, relation: str, count: int, depth: int) -> FieldFacts:
        """The facts of a relation whose one column ``value`` holds JSON."""
        facts = FieldFacts()
        if count:
            self._add_roots(relation, facts, depth)
        return facts

    def _add_roots(self, relation: str, facts: FieldFacts, depth: int) -> None:
        """Count the types of the values themselves, with the members of objects where they have few shapes."""
        shapes = f"SELECT json_type(value), json_keys(value), count(*) FROM ({relation}) GROUP BY ALL"
        rows = self._connection.sql(f"{shapes} LIMIT {_MAX_SHAPES + 1}").fetchall()
        if len(rows) > _MAX_SHAPES:
            self._add_values(relation, [((), facts)], depth)
            return
        lists = []
        for name, keys, count in rows:
            if name is not None:
                facts.types[_TYPES[name]] += count
            if name == "OBJECT":
                lists.append(keys)
        self._describe_contents(relation, (), facts, depth, lists)

    def _add_values(self, relation: str, fields: Sequence[tuple[tuple[str, ...], FieldFacts]], depth: int) -> None:
        """Count the types at some pointers, then go on into objects and arrays."""
        pointers = [json_pointer(path) for path, _ in fields]
        types = f"SELECT json_type(value, {_literal(pointers)}) AS types, count(*) FROM ({relation}) GROUP BY ALL"
        for names, rows in self._connection.sql(types).fetchall():
            for name, (_, facts) in zip(names, fields, strict=True):
                if name is not None:
                    facts.types[_TYPES[name]] += rows
        for path, facts in fields:
            self._describe_contents(relation, path, facts, depth)

    def _describe_contents(
        self,
        relation: str,
        path: tuple[str, ...],
        facts: FieldFacts,
        depth: int,
        lists: Sequence[Sequence[str]] | None = None,
    ) -> None:
        """Describe what is inside values whose types are counted; ``lists`` are the members of objects, if known."""
        if facts.types["string"]:
            self._describe_strings(facts, relation, json_pointer(path))
        if facts.types["array"] and depth < MAX_DEPTH:
            elements = _elements(relation, json_pointer(path))
            facts.items = self.read(elements, 1, depth + 1)
        facts.is_map = bool(facts.types["object"]) and depth >= MAX_DEPTH
        if facts.types["object"] and depth < MAX_DEPTH:
            names = self._member_names(relation, path) if lists is None else _order_names(lists)
            self._read_members(relation, path, names, facts, depth)

    def _read_members(
        self, relation: str, path: tuple[str, ...], names: Sequence[str], facts: FieldFacts, depth: int
    ) -> None:
        facts.is_map = len(names) > MAX_MEMBERS
        if names and not facts.is_map:
            facts.members = {name: FieldFacts() for name in names}
            self._add_values(relation, [((*path, name), member) for name, member in facts.members.items()], depth + 1)

    def _member_names(self, relation: str, path: tuple[str, ...]) -> list[str]:
        keys = f"SELECT json_keys(value, {quote(json_pointer(path))}) AS keys FROM ({relation})"
        distinct = f"SELECT DISTINCT keys FROM ({keys}) WHERE keys IS NOT NULL"
        lists = [names for (names,) in self._connection.sql(f"{distinct} LIMIT {_MAX_SHAPES + 1}").fetchall()]
        if len(lists) > _MAX_SHAPES:
            query = f"SELECT DISTINCT unnest(keys) AS key FROM ({distinct}) LIMIT {MAX_MEMBERS + 1}"
            lists.append([name for (name,) in self._connection.sql(query).fetchall()])
        return _order_names(lists)

    def _describe_strings(self, facts: FieldFacts, relation: str, pointer: str) -> None:
        text = f"json_extract_string(value, {quote(pointer)})"
        strings = f"SELECT {text} AS text FROM ({relation}) WHERE text IS NOT NULL"
        if facts.types.keys() - {"string", "null"}:
            strings += f" AND json_type(value, {quote(pointer)}) = 'VARCHAR'"
        sample = self._texts(f"{strings} LIMIT {_SAMPLE_ROWS}")
        facts.sample(sample)
        if any(count_moments(self._connection, sample)):
            moments = count_moments(self._connection, self._texts(strings))
            facts.date_times, facts.rfc3339, facts.dates = moments

    def _texts(self, query: str) -> pa.Array:
        return self._connection.sql(query).to_arrow_table().column(0).combine_chunks()


def _order_names(lists: Sequence[Sequence[str]]) -> list[str]:
    """All names, in the order of the longest list, which for a table is that of its columns."""
    widest = min(lists, key=lambda names: (-len(names), names))
    return list(dict.fromkeys([*widest, *sorted({name for names in lists for name in names})]))


def _elements(relation: str, pointer: str) -> str:
    arrays = f"SELECT json_extract(value, {quote(pointer)}) AS value FROM ({relation})"
    return f"""SELECT unnest(json_extract(value, '$[*]')) AS value FROM ({arrays}) WHERE json_type(value) = 'ARRAY'"""


def json_pointer(path: Sequence[str]) -> str:
    """The JSON Pointer of a path, which DuckDB reads too."""
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in path)


def _literal(texts: Sequence[str]) -> str:
    return "[" + ", ".join(map(quote, texts)) + "]"


def iterate_fields(facts: FieldFacts, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldFacts]]:
    """Every field that a search may name: members of objects, and the elements of arrays as values of their field."""
    for name, member in facts.members.items():
        yield (*path, name), member
        yield from iterate_fields(member, (*path, name))
