"""The order of hits: which keys it has, how two hits compare, and where a page goes on.

A missing value is greater than every other. Of several values the first one counts. Every order ends in the offset, so
that no two hits are equal and a page can go on after any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from headrace.query.score import scoring_clauses
from headrace.query.search import Field, Kind, Search
from headrace.query.tree import Node
from headrace.query.values import number

SCORE, OFFSET = "_score", "offset"
MAX_KEYS = 16

Hit = TypeVar("Hit")
#: The values of a hit, one for each key; None is missing. An offset is compared as a sequence number.
SortPosition = tuple[Any, ...]

_DIRECTIONS = {"asc": False, "desc": True}


class SortKey(msgspec.Struct, frozen=True):
    """What hits are ordered by: the score, the offset or a field, the greatest first by default."""

    name: str
    descending: bool = True
    field: Field | None = None

    @property
    def is_score(self) -> bool:
        """Whether the best come first or last."""
        return self.field is None and self.name == SCORE

    @property
    def is_offset(self) -> bool:
        """Whether the newest come first or last."""
        return self.field is None and self.name == OFFSET

    def bound(self, value: Any) -> Any:
        """A value as hits have it here, however it is spelled; raises ValueError where no hit could have it.

        An offset is a text on the wire.
        """
        if self.field is not None and value is None:
            return None
        kind = Kind.FLOAT if self.is_score else Kind.KEYWORD if self.field is None else self.field.kind
        if kind in (Kind.INTEGER, Kind.FLOAT, Kind.DATE):
            value = number(kind, value)
        elif not isinstance(value, bool if kind is Kind.BOOL else str):
            value = None
        if value is None:
            raise ValueError(f"no value of {self.name}")
        return value


Order = tuple[SortKey, ...]


def default_order(tree: Node, search: Search) -> Order:
    """The newest first; the best first where something in the query has a score."""
    if not scoring_clauses(tree, search):
        return (SortKey(OFFSET),)
    return SortKey(SCORE), SortKey(search.primary_timestamp, field=search[search.primary_timestamp]), SortKey(OFFSET)


def read(texts: Iterable[str], search: Search) -> Order | str:
    """The order that ``field[:asc|desc]`` texts ask for, or why there is none."""
    keys: list[SortKey] = []
    for text in texts:
        key = _key(text, search)
        if isinstance(key, str):
            return key
        keys.append(key)
    if len(keys) > MAX_KEYS:
        return f"at most {MAX_KEYS} keys can be given"
    # What comes after the offset decides nothing.
    last = next((at for at, key in enumerate(keys) if key.is_offset), None)
    return (*keys, SortKey(OFFSET)) if last is None else tuple(keys[: last + 1])


def arrange(hits: list[Hit], order: Order, position_of: Callable[[Hit], SortPosition]) -> None:
    """Put hits into order."""
    for at in reversed(range(len(order))):
        hits.sort(key=lambda hit: _comparable(position_of(hit)[at]), reverse=order[at].descending)


def follows(position: SortPosition, after: SortPosition, order: Order) -> bool:
    """Whether a hit at one place comes after another place."""
    for key, value, bound in zip(order, position, after, strict=True):
        mine, other = _comparable(value), _comparable(bound)
        if mine != other:
            return mine < other if key.descending else mine > other
    return False


def _comparable(value: Any) -> tuple[bool, Any]:
    return (True, 0) if value is None else (False, value)


def _key(text: str, search: Search) -> SortKey | str:
    name, colon, direction = text.partition(":")
    if colon and direction not in _DIRECTIONS:
        return f"{direction!r} is neither asc nor desc"
    descending = _DIRECTIONS[direction or "desc"]
    # A field that has such a name can be given by an alias.
    if name in (SCORE, OFFSET):
        return SortKey(name, descending)
    if name not in search:
        return f"{name!r} is no declared search field or alias, nor {SCORE} or {OFFSET}{search.hint(name)}"
    field = search[name]
    if not (field.sortable or field.name == search.primary_timestamp):
        return f"{field.name} needs sortable to be sorted by"
    return SortKey(field.name, descending, field)
