"""Postings and stored columns, made natively from a columns table.

A term is the text of a canonical value, or a word of a text. Arrow holds no half surrogate pairs: extraction marks rows
with such values odd, so they are in no posting; everything else that Unicode has, NUL included, is a term like others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.errors import TooManyGroups
from headrace.extract.texts import Counts, Texts
from headrace.format.companion.layout import KEYS, CompanionInfo, FieldShape
from headrace.format.companion.memory import MemoryCompanion
from headrace.format.companion.postings import LIST, SCHEMA, Int32s, one_array
from headrace.query.definition import Definition
from headrace.query.search import Kind
from headrace.query.values import Canonical

VALUE_BITS = 20
_BLANK = 0x20

Ints = NDArray[np.int64]
Ranks = NDArray[np.uint16 | np.uint32]


def term(value: Canonical) -> str:
    """The term under which a canonical value stands."""
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value)
    return str(value)


def is_indexed(definition: Definition, name: str) -> bool:
    """Whether a field has postings."""
    field = definition.search.fields[name]
    by_default = field.kind is Kind.KEYWORD and definition.is_default(name)
    return field.kind is Kind.TEXT or field.exact or field.prefix or definition.is_contained(name) or by_default


def postings(columns: pa.Table, definition: Definition) -> pa.Table:
    """The postings table of a columns table: the key lexicon and every field that has postings."""
    names = [name for name in definition.search.fields if is_indexed(definition, name)]
    return pa.concat_tables([of_field(columns, name, definition) for name in sorted([KEYS, *names])])


def of_field(columns: pa.Table, name: str, definition: Definition) -> pa.Table:
    """The postings of one field, or of routing keys."""
    if name == KEYS:
        field_postings = _of_values(one_array(columns.column("key")))
    elif definition.search.fields[name].kind is Kind.TEXT:
        field_postings = _of_words(one_array(columns.column(f"w.{name}")))
    else:
        field_postings = _of_values(one_array(columns.column(f"f.{name}")))
    lists = [_lists(field_postings.ends, values) for values in (field_postings.rows, field_postings.positions)]
    return pa.table([pa.repeat(name, len(field_postings.terms)), field_postings.terms, *lists], schema=SCHEMA)


def stored_columns(columns: pa.Table) -> pa.Table:
    """The columns that a companion stores: of a text only how many words it has."""
    made = {
        f"n.{name[2:]}" if name.startswith("w.") else name: _counts(one_array(columns.column(name)))
        if name.startswith("w.")
        else columns.column(name)
        for name in columns.column_names
        if name != "key"
    }
    return pa.table(made)


def describe_companion(
    columns: pa.Table, definition: Definition, *, first_seq: int, through_version: int, **more: Any
) -> CompanionInfo:
    """The metadata of a companion with these columns; ``more`` are its stream, level and segments."""
    names = definition.search.fields
    texts = [name for name, field in names.items() if field.kind is Kind.TEXT]
    times = pc.min_max(_flat(one_array(columns.column(f"f.{definition.search.primary_timestamp}"))).values)
    return CompanionInfo(
        first_seq=first_seq,
        count=columns.num_rows,
        through_version=through_version,
        fields={name: _shape(columns, definition, name, through_version) for name in names},
        rollups={name: definition.rollup_hash(name, through_version) for name in definition.search.rollups},
        keys=True,
        times=(times["min"].as_py(), times["max"].as_py()) if times["min"].is_valid else None,
        words={name: _words(one_array(columns.column(f"w.{name}"))) for name in texts},
        odd=pc.sum(columns.column("odd")).as_py() or 0,
        **more,
    )


class _Postings(NamedTuple):
    """Sorted terms; the list of term t is ``rows[ends[t]:ends[t + 1]]``, positions likewise."""

    terms: Any
    ends: Ints
    rows: Ints | Int32s
    positions: Int32s | None


class _Flat(NamedTuple):
    """The values of a column without nulls, the row of each, and its place among those of its row."""

    values: Any
    rows: Ints
    ordinals: Ints


def _of_values(column: Any) -> _Postings:
    values, rows, _ = _flat(column)
    coded = values.dictionary_encode()
    terms, ranks = _rank_terms(_to_terms(coded.dictionary), coded.indices.to_numpy())
    order = _order(ranks)
    rows, ranks = rows[order], ranks[order]
    if pa.types.is_list(column.type):
        fresh = np.ones(len(rows), np.bool_)
        fresh[1:] = (rows[1:] != rows[:-1]) | (ranks[1:] != ranks[:-1])
        rows, ranks = rows[fresh], ranks[fresh]
    return _Postings(terms, _ends(ranks, len(terms)), rows, None)


def _of_words(column: Any) -> _Postings:
    """Every text begins and ends with a blank: cut behind blanks, it is a blank and its words with a blank each."""
    values, rows, ordinals = _flat(column)
    pieces, counts = _cut(Texts(values))
    shifts = (ordinals << VALUE_BITS) - (np.cumsum(counts) - counts) - 1
    positions = np.arange(len(pieces), dtype=np.int32) + np.repeat(shifts.astype(np.int32), counts)
    coded = pieces.dictionary_encode()
    terms, ranks = _rank_terms(_bare(coded.dictionary), coded.indices.to_numpy())
    # The first term is that of the lone blanks, one for each text.
    order, ends = _order(ranks)[len(values) :], _ends(ranks, max(1, len(terms)))[1:] - len(values)
    return _Postings(terms[1:], ends, np.repeat(rows.astype(np.int32), counts)[order], positions[order])


def _cut(texts: Texts) -> tuple[Any, Counts]:
    """All texts cut behind blanks, and how many pieces each has."""
    blank = texts.data == _BLANK
    cuts = np.flatnonzero(blank)
    bounds = np.zeros(len(cuts) + 1, np.int32)
    np.add(cuts, 1, out=bounds[1:], casting="unsafe")
    pieces = pa.StringArray.from_buffers(len(bounds) - 1, pa.py_buffer(bounds), pa.py_buffer(texts.data))
    return pieces, texts.count(blank)


def _bare(pieces: Any) -> Any:
    """Pieces without the blank behind them."""
    return pc.binary_slice(pieces.cast(pa.binary()), 0, -1).view(pa.string())


def _word_counts(values: Any) -> Counts:
    """How many words each text has."""
    texts = Texts(values)
    return texts.count(texts.data == _BLANK) - 1


def _flat(column: Any) -> _Flat:
    """The values of a column of scalars or lists, in order."""
    if not pa.types.is_list(column.type):
        rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        return _Flat(column.drop_null(), rows, np.zeros(len(rows), np.int64))
    values, rows = column.flatten(), pc.list_parent_indices(column).to_numpy()
    counts = np.bincount(rows, minlength=len(column))
    return _Flat(values, rows, np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows])


def _counts(column: Any) -> Any:
    """How many words a row has, null where it has no value."""
    values, rows, _ = _flat(column)
    counts = np.bincount(rows, weights=_word_counts(values), minlength=len(column)).astype(np.int32)
    return pa.array(counts, pa.int32(), mask=column.is_null().to_numpy(zero_copy_only=False))


def _words(column: Any) -> tuple[int, int]:
    """How many rows have a value, and how many words all have."""
    texts = Texts(_flat(column).values)
    return len(column) - column.null_count, int(np.count_nonzero(texts.data == _BLANK)) - len(texts)


def _shape(columns: pa.Table, definition: Definition, name: str, through_version: int) -> FieldShape:
    kind = definition.search.fields[name].kind
    column = columns.schema.field(f"{'w' if kind is Kind.TEXT else 'f'}.{name}")
    is_many = pa.types.is_list(column.type)
    return FieldShape(str(kind), is_many, is_indexed(definition, name), definition.field_hash(name, through_version))


def _to_terms(values: Any) -> Any:
    """Distinct values as terms."""
    if pa.types.is_floating(values.type):
        return pa.array(map(repr, values.to_pylist()), pa.string())
    return values.cast(pa.string())


def _rank_terms(terms: Any, codes: NDArray[np.int32]) -> tuple[Any, Ranks]:
    """The terms in order, and for each code the place of its term there."""
    order = pc.array_sort_indices(terms).to_numpy()
    ranks: Ranks = np.empty(len(order), np.uint16 if len(order) <= 1 << 16 else np.uint32)
    ranks[order] = np.arange(len(order))
    return terms.take(pa.array(order)), ranks[codes]


def _order(ranks: Ranks) -> Ints:
    """Where the elements stand that come first, second, …: by rank, elements of one rank as they came.

    Sixteen bits at a time, lowest first: numpy sorts so few in one pass over the elements.
    """
    order = np.argsort(ranks.astype(np.uint16, copy=False), kind="stable")
    if ranks.dtype != np.uint16:
        order = order[np.argsort((ranks >> 16).astype(np.uint16)[order], kind="stable")]
    return order


def _ends(ranks: Ranks, terms: int) -> Ints:
    return np.concatenate([[0], np.cumsum(np.bincount(ranks, minlength=terms))])


def _lists(ends: Ints, values: Ints | Int32s | None) -> Any:
    if values is None:
        return pa.nulls(len(ends) - 1, LIST)
    return pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(values.astype(np.int32, copy=False)), type=LIST
    )


#: With fewer events in a group, panes take more memory than the columns they are made from, and save no time.
_EVENTS_OF_GROUP = 4
#: So many groups are no matter, however few events they have.
_LEAST_GROUPS = 1_000


def in_memory(columns: pa.Table, definition: Definition, first_seq: int, through_version: int) -> MemoryCompanion:
    """The companion of a columns table; postings and panes are made on first use.

    Panes of groups that have few events are not held.
    """

    def panes(rollup: str, interval: int) -> Any:
        from headrace.reduce import rollup as reducing  # loads DuckDB, which takes long

        max_groups = max(_LEAST_GROUPS, columns.num_rows // _EVENTS_OF_GROUP)
        search = definition.search
        try:
            return reducing.panes(columns, search.rollups[rollup], search, intervals=[interval], max_groups=max_groups)
        except TooManyGroups:
            return None

    return MemoryCompanion(
        describe_companion(columns, definition, first_seq=first_seq, through_version=through_version),
        stored_columns(columns),
        postings=lambda name: of_field(columns, name, definition),
        panes=panes,
    )
