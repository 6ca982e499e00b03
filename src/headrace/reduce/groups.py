"""The key of a group: the values of its dimensions as JSON text, null for an absent one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import TooManyGroups
from headrace.operators.sketches import replace_surrogates
from headrace.query.search import Kind, Rollup, Search
from headrace.query.tree import And, Node, Phrase, Term
from headrace.query.values import Canonical, canonical


def key(values: Sequence[Canonical | None]) -> str:
    """The key of one group."""
    return msgspec.json.encode([replace_in_text(value) for value in values]).decode()


def keys(dimensions: Sequence[pa.Array | pa.ChunkedArray], count: int) -> pa.Array | pa.ChunkedArray:
    """The keys of many groups, each value encoded once."""
    if not dimensions:
        return pa.repeat(pa.scalar("[]"), count)
    texts = [pc.fill_null(_encode_values(column), "null") for column in dimensions]
    return pc.binary_join_element_wise("[", pc.binary_join_element_wise(*texts, ","), "]", "")


def project_keys(group_keys: pa.ChunkedArray, rollup: Rollup, group_by: Sequence[str]) -> pa.ChunkedArray:
    """The keys with only some dimensions left: JSON objects, names in order."""
    indexed = group_keys.combine_chunks().dictionary_encode()
    texts = [project(text, rollup, group_by) for text in indexed.dictionary.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string()).take(indexed.indices)])


def narrow_panes(panes: pa.Table, rollup: Rollup, kept: Sequence[str]) -> pa.Table:
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


def replace_in_text(value: Canonical | None) -> Canonical | None:
    """A value as a column can hold it, see `sketches.replace_surrogates`."""
    return replace_surrogates(value) if isinstance(value, str) else value


def _encode_values(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    indexed = values.dictionary_encode()
    texts = [msgspec.json.encode(value).decode() for value in indexed.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(indexed.indices)


#: A value by the place of its dimension in the key; several conditions may ask for the same place.
WantedValues = list[tuple[int, Canonical | None]]


def wanted_values(tree: Node, rollup: Rollup, search: Search) -> WantedValues | None:
    """The values that a query asks of dimensions; None where it asks for anything else."""
    match tree:
        case And(parts=parts):
            wanted_by_part = [wanted_values(part, rollup, search) for part in parts]
            return (
                None
                if None in wanted_by_part
                else [position_and_value for part in wanted_by_part for position_and_value in part or ()]
            )
        case Term(field=str(name), value=value, prefix=False) | Phrase(field=str(name), value=value, prefix=False):
            field = search[name]
            if field.kind is Kind.TEXT or field.name not in rollup.dimensions:
                return None
            return [(rollup.dimensions.index(field.name), replace_in_text(canonical(field, value)))]
    return None


def filter_panes(panes: pa.Table, wanted: WantedValues) -> pa.Table:
    """The panes of groups that have the requested values."""
    keys = panes.column("key").combine_chunks().dictionary_encode()
    fits = [_fits(msgspec.json.decode(key), wanted) for key in keys.dictionary.to_pylist()]
    return panes.filter(pa.array(fits, pa.bool_()).take(keys.indices))


def _fits(values: list[Canonical | None], wanted: WantedValues) -> bool:
    return all(values[at] == value and type(values[at]) is type(value) for at, value in wanted)


class GroupLimits(NamedTuple):
    """How many groups one answer has at most, over all its buckets, and how many bytes their states take."""

    groups: int
    bytes: int

    def require(self, groups: int, size: int) -> None:
        """Raise TooManyGroups where so many groups, or states of so many bytes, go over a limit."""
        require_groups(groups, self.groups)
        if size > self.bytes:
            raise _too_many_groups(f"the groups of the answer would take more than {self.bytes} bytes", self.bytes)


def require_groups(count: int, limit: int | None) -> None:
    """Raise TooManyGroups where there are more groups than one answer holds."""
    if limit is not None and count > limit:
        raise _too_many_groups(f"the answer would have more than {limit} groups over all its buckets", limit)


def _too_many_groups(reason: str, limit: int) -> TooManyGroups:
    advice = "ask for a shorter range, a longer interval or fewer dimensions, or narrow it by q"
    return TooManyGroups(f"{reason}; {advice}", field="group_by", limit=limit)
