"""Reads search requests; raises BadRequest that names the member that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.errors import BadRequest
from headrace.query import sort
from headrace.query.check import Mode, check
from headrace.query.document_reader import Part
from headrace.query.search import Search
from headrace.query.sort import Order, SortKey, SortPosition
from headrace.query.syntax import QuerySyntaxError, parse
from headrace.query.tree import Node
from headrace.schema.entries import decode_exact
from headrace.types import json_fault

SIZE, MAX_SIZE = 50, 500
MAX_TIMEOUT_MS = 3_000
_KEYS = ("q", "size", "sort", "search_after", "timeout_ms", "track_total_hits", "snippets")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class SearchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A search that can be carried out; ``after`` is the place of the hit that the page follows, as on the wire."""

    tree: Node
    order: Order
    after: SortPosition | None = None
    size: int = SIZE
    timeout_ms: float = MAX_TIMEOUT_MS
    track_total_hits: bool = False
    snippets: bool = False


def read(body: Any, search: Search) -> SearchRequest:
    """The request of a JSON document; raises BadRequest that names the member."""
    document = Part(body)
    if document.knows(_KEYS):
        text = document["q"].text()
        size, timeout_ms = _size(document["size"]), _timeout_ms(document["timeout_ms"])
        total, snippets = document["track_total_hits"].flag(), document["snippets"].flag()
        sorts, after = _texts(document["sort"]), _list(document["search_after"])
    if document.problems:
        first = document.problems[0]
        name = first.pointer[1:]
        problems = [problem._asdict() for problem in document.problems]
        raise BadRequest(f"{name or 'the body'} {first.reason}", field=name or "body", problems=problems)
    assert text is not None, "noted otherwise"
    tree = query(text, search)
    order = _order(sorts, tree, search)
    return SearchRequest(
        tree=tree,
        order=order,
        after=_after(after, order),
        size=size,
        timeout_ms=timeout_ms,
        track_total_hits=total,
        snippets=snippets,
    )


def read_parameters(parameters: Mapping[str, str], search: Search) -> SearchRequest:
    """The same, of query parameters: ``sort`` is a list with commas, ``search_after`` is JSON."""
    members: dict[str, Any] = dict(parameters)
    for name in ("size", "timeout_ms", "search_after"):
        if name in members:
            members[name] = _decode_parameter(name, members[name])
    for name in ("track_total_hits", "snippets"):
        if name in members:
            members[name] = _FLAGS.get(members[name].lower(), members[name])
    if "sort" in members:
        members["sort"] = [text.strip() for text in members["sort"].split(",") if text.strip()]
    return read(members, search)


def query(text: str, search: Search, *, field: str = "q", mode: Mode = "search") -> Node:
    """The tree of a query that the stream can answer; raises BadRequest with the place of every fault."""
    try:
        tree = parse(text)
    except QuerySyntaxError as fault:
        raise BadRequest(f"{field}: {fault}", field=field, position=fault.position) from fault
    faults = check(tree, search, mode=mode)
    if faults:
        problems = [fault._asdict() for fault in faults]
        raise BadRequest(f"{field}: {faults[0]}", field=field, position=faults[0].position, problems=problems)
    return tree


def _decode_parameter(name: str, text: str) -> Any:
    try:
        return decode_exact(text)
    except (msgspec.DecodeError, RecursionError) as reason:
        raise BadRequest(f"{name}: {text[:100]!r} is not JSON: {json_fault(reason, text)}", field=name) from reason


def _size(part: Part) -> int:
    size = part.integer() if part.is_present else SIZE
    if size is not None and not 0 <= size <= MAX_SIZE:
        part.note(f"lies between 0 and {MAX_SIZE}")
    return size or 0


def _timeout_ms(part: Part) -> float:
    """The time given, but no more than the server gives."""
    value = part.value if part.is_present else MAX_TIMEOUT_MS
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        part.note("must be a number that is not negative")
        return 0
    return min(value, MAX_TIMEOUT_MS)


def _texts(part: Part) -> list[str]:
    texts = [element.text() for element in (part.elements() if part.is_present else ())]
    return [text for text in texts if text is not None]


def _list(part: Part) -> list[Any] | None:
    """An array; null is none."""
    if not part.is_present or part.value is None:
        return None
    return [element.value for element in part.elements()]


def _order(texts: list[str], tree: Node, search: Search) -> Order:
    order = sort.read(texts, search) if texts else sort.default_order(tree, search)
    if isinstance(order, str):
        raise BadRequest(f"sort: {order}", field="sort")
    return order


def _after(bounds: list[Any] | None, order: Order) -> SortPosition | None:
    if bounds is None:
        return None
    names = ", ".join(key.name for key in order)
    if len(bounds) != len(order):
        raise BadRequest(f"search_after has {len(bounds)} values, and hits are sorted by {names}", field="search_after")
    return tuple(_bound(key, value) for key, value in zip(order, bounds, strict=True))


def _bound(key: SortKey, value: Any) -> Any:
    try:
        return key.bound(value)
    except ValueError as reason:
        raise BadRequest(f"search_after: {value!r} is no {key.name} of a hit", field="search_after") from reason
