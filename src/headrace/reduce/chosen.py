"""Queries that panes can answer: those that ask for nothing but values of dimensions."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from headrace.query.search import Kind, Rollup, Search
from headrace.query.tree import And, Node, Phrase, Term
from headrace.query.values import Canonical, canonical
from headrace.reduce.keys import sound

#: A value by the place of its dimension in the key; several conditions may ask for the same place.
Wanted = list[tuple[int, Canonical | None]]


def wanted(tree: Node, rollup: Rollup, search: Search) -> Wanted | None:
    """The values that a query asks of dimensions; None where it asks for anything else."""
    match tree:
        case And(parts=parts):
            found = [wanted(part, rollup, search) for part in parts]
            return None if None in found else [one for part in found for one in part or ()]
        case Term(field=str(name), value=value, prefix=False) | Phrase(field=str(name), value=value, prefix=False):
            field = search[name]
            if field.kind is Kind.TEXT or field.name not in rollup.dimensions:
                return None
            return [(rollup.dimensions.index(field.name), sound(canonical(field, value)))]
    return None


def chosen(panes: pa.Table, asked: Wanted) -> pa.Table:
    """The panes of groups that have the values asked for."""
    keys = panes.column("key").combine_chunks().dictionary_encode()
    fits = [_fits(msgspec.json.decode(key), asked) for key in keys.dictionary.to_pylist()]
    return panes.filter(pa.array(fits, pa.bool_()).take(keys.indices))


def _fits(values: list[Canonical | None], asked: Wanted) -> bool:
    return all(values[at] == value and type(values[at]) is type(value) for at, value in asked)
