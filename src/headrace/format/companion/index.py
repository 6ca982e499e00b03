"""Where things lie in a companion's files: our own index in the footer, beside Parquet's, which cuts long texts.

An index is JSON, compressed, in letters that every reader of Parquet takes for text.
"""

from __future__ import annotations

import base64
import zlib
from bisect import bisect_left
from collections.abc import Callable
from itertools import takewhile
from typing import NamedTuple, TypeVar

import msgspec

from headrace import decoding
from headrace.format.companion.tables import Zone

FIRST_LETTERS = 64

Index = TypeVar("Index", bound=msgspec.Struct)


class ByteRange(NamedTuple):
    """Where bytes lie in a file, how many, and their CRC-32."""

    offset: int
    size: int
    checksum: int


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


def encode(index: msgspec.Struct) -> bytes:
    """An index as the footer holds it."""
    return base64.b85encode(zlib.compress(msgspec.json.encode(index)))


def decode(document: bytes, kind: type[Index]) -> Index:
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
    stop = start + sum(1 for _ in takewhile(lambda place: not beyond(firsts[place]), range(start, len(firsts))))
    return range(start, stop)
