from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from headrace.query.sort import MAX_KEYS, OFFSET, SCORE, Order, SortKey, arrange, default_order, follows, read
from headrace.query.syntax import parse
from query.declarations import DOCUMENT, SEARCH, declared

TIME = SortKey("time", True, SEARCH["time"])
MUTE = SortKey("mute", True, SEARCH["mute"])
STATUS, DURATION = (SortKey(name, True, SEARCH[name]) for name in ("status", "duration"))


def order(*texts: str) -> Order:
    found = read(texts, SEARCH)
    assert not isinstance(found, str), found
    return found


def test_an_order_ends_in_the_offset() -> None:
    assert order("time") == (TIME, SortKey(OFFSET))
    assert order("ts:asc", "_score:desc") == (SortKey("time", False, SEARCH["time"]), SortKey(SCORE), SortKey(OFFSET))
    assert order("offset:asc") == (SortKey(OFFSET, False),)


def test_what_comes_after_the_offset_decides_nothing() -> None:
    assert order("mute", "offset:asc", "time", "_score") == (MUTE, SortKey(OFFSET, False))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nothing", "no declared search field"),
        ("time:up", "neither asc nor desc"),
        ("time:", "neither asc nor desc"),
        ("service", "needs sortable"),
        ("message:asc", "needs sortable"),
        ("", "no declared search field"),
    ],
)
def test_an_order_that_cannot_be_is_refused(text: str, reason: str) -> None:
    found = read([text], SEARCH)
    assert isinstance(found, str) and reason in found


def test_an_order_has_few_keys() -> None:
    assert isinstance(read(["time"] * (MAX_KEYS + 1), SEARCH), str)


def test_a_field_called_offset_is_sorted_by_its_alias() -> None:
    field = {"kind": "integer", "bindings": [{"version": 1, "jsonPointer": "/o"}], "sortable": True}
    fields = {**DOCUMENT["fields"], "offset": field}
    search = declared({**DOCUMENT, "fields": fields, "aliases": {"place": "offset"}})
    assert read(["offset"], search) == (SortKey(OFFSET),)
    by_field = read(["place"], search)
    assert not isinstance(by_field, str)
    assert [(key.name, key.is_offset) for key in by_field] == [("offset", False), ("offset", True)]


@pytest.mark.parametrize(
    ("query", "is_scored"),
    [
        ("status:500", False),
        ("service:api", False),
        ("contains:message:x", False),
        ("has:message", False),
        ("-message:x", False),
        ("status:500 -x", False),
        ("message:x", True),
        ("x", True),
        ('"x y"', True),
        ("status:500 OR (has:time x)", True),
    ],
)
def test_the_best_come_first_where_something_has_a_score(query: str, is_scored: bool) -> None:
    scored = (SortKey(SCORE), TIME, SortKey(OFFSET))
    assert default_order(parse(query), SEARCH) == (scored if is_scored else (SortKey(OFFSET),))


def test_missing_values_are_the_greatest_whatever_the_direction() -> None:
    places: list[Any] = [(2, 0), (None, 1), (1, 2), (None, 3), (2, 4)]
    descending = (MUTE, SortKey(OFFSET))
    arrange(places, descending, lambda place: place)
    assert places == [(None, 3), (None, 1), (2, 4), (2, 0), (1, 2)]
    ascending = (SortKey("mute", False, SEARCH["mute"]), SortKey(OFFSET))
    arrange(places, ascending, lambda place: place)
    assert places == [(1, 2), (2, 4), (2, 0), (None, 3), (None, 1)]
    for keys in (descending, ascending):
        arrange(places, keys, lambda place: place)
        for at, place in enumerate(places):
            assert [follows(other, place, keys) for other in places] == [later > at for later in range(5)]


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        (SortKey(OFFSET), ["00"], [None, 1, True]),
        (SortKey(SCORE), [0, 1.5], [None, "1", True]),
        (TIME, [5, None], ["5", 1.5, True]),
        (STATUS, [2**53 + 1, -1, None], ["5", 1.5, Decimal("9007199254740992.5"), Decimal("1e-400"), True]),
        (MUTE, ["a", None], [1, False]),
        (DURATION, [1, 1.5, None], ["1", True, 10**400]),
        (SortKey("error", True, SEARCH["error"]), [True, None], [1, "true"]),
    ],
)
def test_a_key_knows_the_values_of_hits(key: SortKey, good: list[Any], bad: list[Any]) -> None:
    assert [key.bound(value) for value in good] == good
    for value in bad:
        with pytest.raises(ValueError, match="no value"):
            key.bound(value)


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        (STATUS, 5.0, 5),
        (STATUS, 1e22, 10**22),
        (STATUS, Decimal("9007199254740993.0"), 2**53 + 1),
        (TIME, 5.0, 5),
        (DURATION, 2**53 + 1, 2.0**53),
        (DURATION, Decimal("1e-400"), 0.0),
    ],
)
def test_a_value_is_compared_as_those_of_hits_however_it_is_spelled(key: SortKey, given: Any, value: Any) -> None:
    assert key.bound(given) == value
    assert type(key.bound(given)) is type(value)
