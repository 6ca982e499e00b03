"""The key of a group: the values of its dimensions as JSON text, null for an absent one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.query.search import Rollup
from headrace.query.values import Canonical


def key(values: Sequence[Canonical | None]) -> str:
    """The key of one group."""
    return msgspec.json.encode([sound(value) for value in values]).decode()


def keys(dimensions: Sequence[pa.Array | pa.ChunkedArray], count: int) -> pa.Array | pa.ChunkedArray:
    """The keys of many groups, each value encoded once."""
    if not dimensions:
        return pa.repeat(pa.scalar("[]"), count)
    texts = [pc.fill_null(_encoded(column), "null") for column in dimensions]
    return pc.binary_join_element_wise("[", pc.binary_join_element_wise(*texts, ","), "]", "")


def projected(found: pa.ChunkedArray, rollup: Rollup, group_by: Sequence[str]) -> pa.ChunkedArray:
    """The keys with only some dimensions left: JSON objects, names in order."""
    indexed = found.combine_chunks().dictionary_encode()
    texts = [project(text, rollup, group_by) for text in indexed.dictionary.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string()).take(indexed.indices)])


def narrowed(panes: pa.Table, rollup: Rollup, kept: Sequence[str]) -> pa.Table:
    """Panes whose keys have only some dimensions left, in the order of the rollup; several may be of one group."""
    places = [at for at, name in enumerate(rollup.dimensions) if name in kept]
    if len(places) == len(rollup.dimensions):
        return panes
    indexed = panes.column("key").combine_chunks().dictionary_encode()
    decoded = map(msgspec.json.decode, indexed.dictionary.to_pylist())
    texts = [msgspec.json.encode([values[at] for at in places]).decode() for values in decoded]
    at = panes.schema.get_field_index("key")
    return panes.set_column(at, panes.schema.field(at), pa.array(texts, pa.string()).take(indexed.indices))


def project(text: str, rollup: Rollup, group_by: Sequence[str]) -> str:
    """One key with only some dimensions left."""
    values = dict(zip(rollup.dimensions, msgspec.json.decode(text), strict=True))
    return msgspec.json.encode({name: values[name] for name in sorted(group_by)}).decode()


def sound(value: Canonical | None) -> Canonical | None:
    """A value as a column can hold it: half of a surrogate pair becomes the replacement character."""
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else value


def _encoded(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    indexed = whole.dictionary_encode()
    texts = [msgspec.json.encode(value).decode() for value in indexed.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(indexed.indices)
