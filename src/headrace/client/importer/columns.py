"""Columns of texts, as CSV has them: what all values of a column may be, and the values as JSON.

A column has the narrowest kind that all of its values have. Everything is computed on Arrow's buffers, as a file has
millions of values; DuckDB is asked about moments in unusual spellings only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.importer.facts import FieldFacts, are_utc_moments, count_moments

Kind = Literal["null", "boolean", "number", "moment", "text"]

_BOOLEANS = pa.array(["true", "false", "True", "False", "TRUE", "FALSE"])
_NUMBER = r"^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$"
_INTEGER = r"^-?(0|[1-9]\d*)$"
#: Whole numbers with so many digits fit into 64 bits; those that do not are numbers to whoever reads JSON.
_SURE_DIGITS = 18
#: Turns a moment of ISO 8601 in capitals into one of RFC 3339, digit by digit; without a zone it is in UTC.
_RFC3339_STEPS = (
    (r"(T\d\d:\d\d)([Z+-]|$)", r"\1:00\2"),
    (r"([+-]\d\d):?(\d\d)$", r"\1:\2"),
    (r"(T[0-9:.]+)$", r"\1Z"),
)
#: What JSON writes with a backslash, apart from other control characters.
_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))


class ColumnFacts(msgspec.Struct):
    """What is known of the values of a column after some rows; kinds that a value ruled out are tested no more."""

    rows: int = 0
    #: How many values are there, as an empty one is none.
    count: int = 0
    is_boolean: bool = True
    is_number: bool = True
    is_integer: bool = True
    #: Whether all values are moments, and whether all are spelled as RFC 3339 in UTC.
    is_moment: bool = True
    is_rfc3339: bool = True
    #: The facts of the values as texts; moments are counted as long as there are no others.
    texts: FieldFacts = msgspec.field(default_factory=FieldFacts)

    @classmethod
    def of_text(cls) -> ColumnFacts:
        """The facts of a column whose values are text, whatever they look like."""
        return cls(is_boolean=False, is_number=False, is_integer=False, is_moment=False)

    @property
    def kind(self) -> Kind:
        """The narrowest kind that all values have."""
        if not self.count:
            return "null"
        if self.is_boolean:
            return "boolean"
        if self.is_number:
            return "number"
        return "moment" if self.is_moment else "text"

    def add(self, connection: duckdb.DuckDBPyConnection, column: pa.Array) -> None:
        """Take the values of more rows into account."""
        self.rows += len(column)
        values = column.drop_null() if column.null_count else column
        if not len(values):
            return
        self.count += len(values)
        self.is_boolean = self.is_boolean and bool(pc.all(pc.is_in(values, _BOOLEANS)).as_py())
        self.is_number = self.is_number and bool(pc.all(pc.match_substring_regex(values, _NUMBER)).as_py())
        self.is_integer = self.is_number and self.is_integer and _are_integers(values)
        self._add_texts(connection, values)

    def _add_texts(self, connection: duckdb.DuckDBPyConnection, values: pa.Array) -> None:
        added = FieldFacts(types=Counter(string=len(values)))
        added.sample(values)
        if not self.is_number and self.texts.date_times + self.texts.dates == self.texts.types["string"]:
            added.date_times, added.rfc3339, added.dates = count_moments(connection, values)
        self.is_moment = self.is_moment and added.date_times == len(values)
        self.is_rfc3339 = self.is_moment and self.is_rfc3339 and are_utc_moments(values)
        self.texts = self.texts.merge(added)

    def field(self) -> FieldFacts:
        """The facts of the column as a field of JSON."""
        nulls = Counter(null=self.rows - self.count)
        match self.kind:
            case "null":
                return FieldFacts(types=+nulls)
            case "boolean":
                return FieldFacts(types=+nulls + Counter(boolean=self.count))
            case "number":
                name = "integer" if self.is_integer else "number"
                return FieldFacts(types=+nulls + Counter({name: self.count}))
            case "moment":
                texts = msgspec.structs.replace(self.texts, date_times=self.count, rfc3339=self.count)
            case "text":
                texts = self.texts
        return msgspec.structs.replace(texts, types=+nulls + Counter(string=self.count))


def encode_rows(batch: pa.RecordBatch, columns: Mapping[str, ColumnFacts]) -> pa.Array:
    """Rows as texts of JSON objects."""
    parts: list[Any] = []
    for number, name in enumerate(batch.schema.names):
        parts.append(pa.scalar(("," if number else "{") + msgspec.json.encode(name).decode() + ":"))
        parts.append(_encode(batch.column(number), columns[name]))
    return pc.binary_join_element_wise(*parts, "}", "", null_handling="replace", null_replacement="null")


def _encode(column: pa.Array, facts: ColumnFacts) -> pa.Array:
    """The values of a column as JSON; null where there is none."""
    match facts.kind:
        case "null" | "number":
            return column
        case "boolean":
            return pc.ascii_lower(column)
        case "moment":
            texts = column if facts.is_rfc3339 else _rfc3339(column)
        case "text":
            texts = _escape(column)
    return pc.binary_join_element_wise('"', texts, '"', "")


def _rfc3339(moments: pa.Array) -> pa.Array:
    texts = pc.replace_substring(pc.ascii_upper(moments), " ", "T")
    for pattern, replacement in _RFC3339_STEPS:
        texts = pc.replace_substring_regex(texts, pattern, replacement)
    return texts


def _escape(texts: pa.Array) -> pa.Array:
    """Texts as JSON spells them between quotes."""
    if not _needs_escape(texts):
        return texts
    for character, escaped in _ESCAPES:
        texts = pc.replace_substring(texts, character, escaped)
    if not _has_control_characters(texts):
        return texts
    return pa.array([text and _escape_control_characters(text) for text in texts.to_pylist()], pa.string())


def _escape_control_characters(text: str) -> str:
    return "".join(character if character >= " " else f"\\u{ord(character):04x}" for character in text)


def _needs_escape(texts: pa.Array) -> bool:
    data = _data(texts)
    return bool(((data < ord(" ")) | (data == ord('"')) | (data == ord("\\"))).any())


def _has_control_characters(texts: pa.Array) -> bool:
    return bool((_data(texts) < ord(" ")).any())


def _data(texts: pa.Array) -> Any:
    """The bytes of all texts."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return np.zeros(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4)
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]


def _are_integers(numbers: pa.Array) -> bool:
    """Whether numbers are spelled as whole ones that 64 bits hold."""
    if not pc.all(pc.match_substring_regex(numbers, _INTEGER)).as_py():
        return False
    if pc.max(pc.binary_length(numbers)).as_py() <= _SURE_DIGITS:
        return True
    return all(-(2**63) <= int(text) < 2**64 for text in numbers.to_pylist())
