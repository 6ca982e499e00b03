"""The identity of a companion, its entry in metadata, and the index in each of its files.

The index is our own, beside Parquet's, which cuts long texts. It is JSON, compressed, in letters that every reader of
Parquet takes for text. This module imports no Arrow, so that it loads fast.
"""

from __future__ import annotations

import base64
import zlib
from bisect import bisect_left
from collections.abc import Callable
from itertools import takewhile
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from headrace import decoding
from headrace.format.identity import decode_identity
from headrace.types import NonNegativeInt

VERSION = 1
METADATA, INDEX = b"headrace", b"headrace.index"

PartName = Literal["columns", "postings", "panes"]
PARTS: tuple[PartName, ...] = ("columns", "postings", "panes")

#: The field under which the key lexicon stands in the postings; no declared field has an empty name.
KEYS = ""


class Limits(NamedTuple):
    """What a row group holds at most: rows and about so many bytes of columns; postings, terms and their text.

    With ``filtered`` terms or more it has a filter; fewer are as quickly decoded.
    """

    rows: int = 65_536
    column_bytes: int = 32 * 1024 * 1024
    postings: int = 131_072
    terms: int = 16_384
    term_bytes: int = 4 * 1024 * 1024
    filtered: int = 512


LIMITS = Limits()


class FieldShape(msgspec.Struct, frozen=True):
    """A field as a companion holds it: its kind, whether its column has lists, whether it has postings."""

    kind: str
    many: bool
    indexed: bool
    hash: str


class CompanionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a companion; every file of it carries the same."""

    version: int = VERSION
    stream: str = ""
    incarnation: str = ""
    first_seq: int
    count: int
    level: int = 0
    #: How many segments it covered when it was built.
    segments: int = 0
    #: The greatest schema version among its events.
    through_version: int
    fields: dict[str, FieldShape]
    #: Rollup → hash.
    rollups: dict[str, str]
    #: Whether it has the key lexicon.
    keys: bool
    #: The least and the greatest primary time in ms, or None where no event has one.
    times: tuple[int, int] | None
    #: Text field → (events with a value, words in all of them).
    words: dict[str, tuple[int, int]]
    #: How many rows the columns cannot describe.
    odd: int

    @property
    def end_seq(self) -> int:
        """The sequence number after its last event."""
        return self.first_seq + self.count


class PartFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a companion."""

    bytes: NonNegativeInt
    sha256: str


class Companion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A companion as metadata lists it; ``name`` is what its objects are called up to the dot."""

    name: str
    first_seq: NonNegativeInt
    count: NonNegativeInt
    level: NonNegativeInt
    through_version: NonNegativeInt
    #: Field → hash, rollup → hash.
    fields: dict[str, str]
    rollups: dict[str, str]
    keys: bool
    columns: PartFile
    postings: PartFile | None
    panes: PartFile | None
    times: tuple[int, int] | None
    segments: NonNegativeInt
    words: dict[str, tuple[int, int]]

    @property
    def end_seq(self) -> int:
        """The sequence number after its last event."""
        return self.first_seq + self.count

    @property
    def parts(self) -> dict[PartName, PartFile]:
        """The files that there are."""
        files = {"columns": self.columns, "postings": self.postings, "panes": self.panes}
        return {name: part for name in PARTS if (part := files[name]) is not None}


def companion_entry(info: CompanionInfo, name: str, parts: dict[PartName, PartFile]) -> Companion:
    """A companion that was written, as metadata lists it."""
    return Companion(
        name=name,
        first_seq=info.first_seq,
        count=info.count,
        level=info.level,
        through_version=info.through_version,
        fields={field: shape.hash for field, shape in info.fields.items()},
        rollups=info.rollups,
        keys=info.keys,
        columns=parts["columns"],
        postings=parts.get("postings"),
        panes=parts.get("panes"),
        times=info.times,
        segments=info.segments,
        words=info.words,
    )


def decode_info(document: bytes | None, name: str) -> CompanionInfo:
    """Decode the metadata of a companion; refuses damaged metadata and that of a newer Headrace."""
    return decode_identity(document, CompanionInfo, name=name, kind="companion", newest=VERSION)


FIRST_LETTERS = 64

Index = TypeVar("Index", bound=msgspec.Struct)


class ByteRange(NamedTuple):
    """Where bytes lie in a file, how many, and their CRC-32."""

    offset: int
    size: int
    checksum: int


class Zone(NamedTuple):
    """Bounds of the values in a piece of a column, and how many rows have none."""

    least: Any
    greatest: Any
    nulls: int


class ColumnsIndex(msgspec.Struct):
    """How many rows each row group has, and for every column the bounds in each."""

    rows: list[int]
    zones: dict[str, list[Zone]]


class PostingsIndex(msgspec.Struct):
    """For every field, in order, how each of its row groups begins: the first letters of its first term.

    A row group holds whole terms of one field, or a part of one term. For each, ``filters`` says where its Bloom filter
    lies, None where it has none; there are no filters at all in files that were written before there were any.
    """

    fields: list[tuple[str, list[str]]]
    filters: list[ByteRange | None] = []


class PanesIndex(msgspec.Struct):
    """The rollup and the interval of each row group."""

    groups: list[tuple[str, int]]


def encode_index(index: msgspec.Struct) -> bytes:
    """An index as the footer holds it."""
    return base64.b85encode(zlib.compress(msgspec.json.encode(index)))


def decode_index(document: bytes, kind: type[Index]) -> Index:
    """An index as it was written; raises ValueError where it is damaged."""
    try:
        return decoding.decode(zlib.decompress(base64.b85decode(document)), kind)
    except zlib.error as reason:
        raise ValueError(f"its index is damaged: {reason}") from reason


def first_letters(term: str) -> str:
    """What the index keeps of a term."""
    return term[:FIRST_LETTERS]


def groups_holding(firsts: list[str], low: str, beyond: Callable[[str], bool]) -> range:
    """The row groups that may hold terms from ``low`` on, up to those that begin beyond.

    ``firsts`` are cut, and so may be less than the terms with which the groups begin, but never greater.
    """
    cut = first_letters(low)
    start = bisect_left(firsts, cut)
    begins_there = start < len(firsts) and firsts[start] == cut and len(cut) < FIRST_LETTERS
    start = start if begins_there else max(0, start - 1)
    stop = start + sum(1 for _ in takewhile(lambda group: not beyond(firsts[group]), range(start, len(firsts))))
    return range(start, stop)
