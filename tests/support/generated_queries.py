"""Questions to streams that change: queries of every kind of clause, orders, pages, spans, groups; from a seed."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from headrace.query.check import Mode, check
from headrace.query.search import Field, Kind, Rollup, Search
from headrace.query.syntax import QuerySyntaxError, parse, text
from headrace.query.tree import And, Clause, Compare, Contains, Has, Node, Not, Or, Phrase, Term
from support.changing_streams import FARTHEST, HOUR, KEYS, LEVELS, MINUTE, START, WORDS

_STRINGS = (*WORDS, *LEVELS, "AB", "a", "Ab", "x", "Y", "", "ab b", "eu", "3", "straße", "σίσυφος")
_TEXTS = (
    "ab",
    "b",
    "straße",
    "ΣΊΣΥΦΟΣ",
    "zz",
    "a1",
    "x-y",
    "a",
    "日本",
    "ab b",
    "b ab",
    "Abc ab",
    "e\u0301",
    "İz",
    "no",
)
_NUMBERS = ("0", "1", "3", "-1", "6", "1.5", "9223372036854775808", "-9223372036854775808", "1180591620717411303424")
_MOMENTS = (str(START), str(START + HOUR), "2025-10-09T08:30", "2025-10-09", "2025-10-09T10:53:20+02:00", "0", "-1")


class Span(NamedTuple):
    """What an aggregate asks, as it is sent."""

    body: dict[str, Any]
    rollup: Rollup


def query(random: Random, search: Search, mode: Mode = "search") -> Node:
    """Something that may be asked of the stream."""
    while True:
        try:
            # As it is read: what is said without quotes may come out otherwise.
            tree = parse(text(_tree(random, search, random.choice([0, 0, 1, 1, 2, 3]))))
        except QuerySyntaxError:
            continue
        if not check(tree, search, mode=mode):
            return tree


def _tree(random: Random, search: Search, depth: int) -> Node:
    if not depth:
        return _clause(random, search)
    parts = tuple(_tree(random, search, depth - 1) for _ in range(random.randint(2, 3)))
    return random.choice([And(parts), Or(parts), Or(parts), Not(parts[0]), And((Not(parts[0]), *parts[1:]))])


def _clause(random: Random, search: Search) -> Clause:
    if random.random() < 0.2:
        bare = random.choice([Term, Phrase])(None, random.choice(_TEXTS), random.random() < 0.3)
        return random.choice([bare, bare, Contains(None, random.choice(_STRINGS))])
    named = random.choice([*search.fields, *search.aliases])
    field = search[named]
    value = _value(random, field)
    kind = random.random()
    if kind < 0.15:
        return Has(named)
    if field.kind in (Kind.KEYWORD, Kind.TEXT):
        if kind < 0.3:
            return Contains(named, value)
        return random.choice([Term, Phrase])(named, value, random.random() < 0.3)
    if kind < 0.6 and field.kind is not Kind.BOOL:
        return Compare(named, random.choice(["<", "<=", ">", ">="]), value)
    return Phrase(named, value)


def _value(random: Random, field: Field) -> str:
    if field.kind is Kind.TEXT:
        return random.choice(_TEXTS)
    if field.kind is Kind.KEYWORD:
        return random.choice(_STRINGS)
    if field.kind is Kind.BOOL:
        return random.choice(["true", "false"])
    return random.choice(_MOMENTS if field.kind is Kind.DATE else _NUMBERS)


def searched(random: Random, search: Search) -> dict[str, Any]:
    """A search, as it is sent."""
    able = [name for name, field in search.fields.items() if field.sortable]
    order = [
        random.choice([*able, *able, "_score", "offset"]) + random.choice(["", ":asc", ":desc"])
        for _ in range(random.choice([0, 0, 1, 1, 2, 3]))
    ]
    body: dict[str, Any] = {"q": text(query(random, search)), "size": random.choice([1, 2, 3, 7, 20, 100])}
    if order:
        body["sort"] = order
    if random.random() < 0.5:
        body["track_total_hits"] = True
    return body


def filtered(random: Random, search: Search) -> tuple[Node, str | None]:
    """A filter, and perhaps a key."""
    return query(random, search, "filter"), random.choice(KEYS) if random.random() < 0.25 else None


def aggregated(random: Random, search: Search) -> Span:
    """An aggregate."""
    rollup = search.rollups[random.choice(sorted(search.rollups))]
    interval = random.choice(rollup.intervals)
    start, end = random.choice(
        [
            (-FARTHEST, FARTHEST),
            (START - 3 * HOUR, START + 3 * HOUR),
            (START // HOUR * HOUR, START // HOUR * HOUR + HOUR),
            (START - random.randrange(HOUR), START + random.randrange(1, HOUR)),
            (START, START + random.randrange(1, 3 * MINUTE)),
            ("2025-10-09T08:00:00Z", "2025-10-09T09:10:00Z"),
        ]
    )
    body: dict[str, Any] = {"rollup": rollup.name, "from": start, "to": end, "interval": interval.text}
    if random.random() < 0.6:
        body["group_by"] = [name for name in rollup.dimensions if random.random() < 0.6]
    if random.random() < 0.4:
        body["measures"] = random.sample(sorted(rollup.measures), random.randint(1, len(rollup.measures)))
    if random.random() < 0.5:
        body["q"] = text(_narrow(random, rollup) if random.random() < 0.4 else query(random, search))
    return Span(body, rollup)


def _narrow(random: Random, rollup: Rollup) -> Node:
    """Nothing but values of dimensions, or close to it."""
    values = {"service": ("ab", "b", "eu", "AB"), "status": ("1", "3", "-1"), "error": ("true",), "level": ("0", "1")}
    asked = [Phrase(name, random.choice(values[name])) for name in rollup.dimensions if random.random() < 0.7]
    if not asked:
        return Has("time")
    return asked[0] if len(asked) == 1 else And(tuple(asked))
