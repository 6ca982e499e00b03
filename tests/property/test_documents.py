"""Validation held against jsonschema-rs, Python's own parser, exact arithmetic and the calendar."""

from __future__ import annotations

import calendar
import json
import re
from decimal import Decimal, localcontext
from typing import Any

import jsonschema_rs
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schema.date_time import is_date_time
from headrace.schema.document import MAX_ENTRIES, Validator, problems
from headrace.schema.entries import read
from headrace.schema.pointer import index, parse
from headrace.schema.routing_key import RoutingKey
from schema.strategies import ANYTHING, NAMES, documents, near_misses, object_schemas, schemas

MANY = max(300, settings.default.max_examples)
LEAVES = ["a", ':"', "é", 7, 0.5, None]
SHAPE = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]{1,9})?(Z|[+-]([0-9]{2}):([0-9]{2}))"
)


def in_the_calendar(text: str) -> bool:
    """A date-time by the calendar, not by our pattern."""
    found = SHAPE.fullmatch(text)
    if not found:
        return False
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    return (
        year > 0
        and 1 <= month <= 12
        and 1 <= day <= calendar.monthrange(year, month)[1]
        and all(part < 24 for part in (hour, int(found[9] or 0)))
        and all(part < 60 for part in (minute, second, int(found[10] or 0)))
    )


def oracle(schema: Any) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(
        schema,
        validate_formats=True,
        formats={"date-time": in_the_calendar},
        pattern_options=jsonschema_rs.RegexOptions(),
    )


class Speller:
    """Spells a value as JSON in any of the ways there are."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._choices = iter(draw(st.lists(st.integers(0, 5), min_size=40, max_size=40)))

    def choice(self) -> int:
        """A number from 0 to 5; 0 when there were too many choices."""
        return next(self._choices, 0)

    def spell(self, value: Any) -> str:
        blank = ("", "", "", " ", "\n", "\t ")[self.choice()]
        if isinstance(value, dict):
            members = (f"{self._text(name)}{blank}:{self.spell(member)}" for name, member in value.items())
            return f"{{{blank}{','.join(members)}}}"
        if isinstance(value, list):
            return f"{blank}[{(blank + ',').join(map(self.spell, value))}{blank}]"
        return blank + (self._text(value) if isinstance(value, str) else self._scalar(value))

    def repeating(self, depth: int) -> str:
        """Any JSON text, in which keys may repeat."""
        kind = self.choice() if depth else 0
        if kind <= 1:
            return self.spell(LEAVES[self.choice()])
        texts = [self.repeating(depth - 1) for _ in range(min(self.choice(), 3))]
        if kind == 2:
            return f"[{','.join(texts)}]"
        return "{" + ",".join(f"{self.spell(LEAVES[self.choice() // 2])}:{text}" for text in texts) + "}"

    def _text(self, text: str) -> str:
        way = self.choice()
        if way == 5:
            return '"' + "".join(f"\\u{unit:04x}" for unit in _units(text)) + '"'
        return json.dumps(text, ensure_ascii=way > 2)

    def _scalar(self, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return json.dumps(value)
        way = self.choice()
        exact = Decimal(repr(value))
        if way == 3:
            return f"{exact:f}" + (".0" if exact == int(exact) and "." not in f"{exact:f}" else "0")
        return f"{exact:e}" if way == 4 else repr(value)


def _units(text: str) -> list[int]:
    units = text.encode("utf-16-be")
    return [int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2)]


@st.composite
def spelled(draw: st.DrawFn, value: Any) -> str:
    return Speller(draw).spell(value)


def candidates(schema: Any) -> st.SearchStrategy[Any]:
    return documents(schema) | near_misses(schema) | near_misses(schema) | ANYTHING


@settings(max_examples=MANY)
@given(st.data())
def test_an_entry_fails_exactly_where_jsonschema_rs_refuses_it(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    value = data.draw(candidates(schema))
    text = data.draw(spelled(value))
    validator = Validator(schema)
    valid = oracle(schema).is_valid(value)
    assert validator.accepts(value) == valid
    failures = validator.failures(text.encode())
    assert (failures == []) == valid
    assert all(failure.index == 0 and failure.reason and parse(failure.pointer) is not None for failure in failures)


@given(st.data())
def test_of_many_entries_exactly_those_that_fail_are_named(data: st.DataObject) -> None:
    schema = data.draw(object_schemas(depth=2))
    values = data.draw(st.lists(candidates(schema), max_size=30))
    texts = [data.draw(spelled(value)) for value in values]
    refused = [n for n, value in enumerate(values) if not oracle(schema).is_valid(value)]
    named = {failure.index for failure in Validator(schema).failures(",".join(texts).encode())}
    assert sorted(named) == refused[: MAX_ENTRIES + 1]


@given(schemas(depth=4))
def test_every_ordinary_schema_is_usable_in_every_draft_that_knows_it(schema: Any) -> None:
    assert problems(schema) == []
    if isinstance(schema, dict):
        assert problems({"$schema": "http://json-schema.org/draft-07/schema#", **schema}) == []


@given(st.data())
def test_a_reference_judges_like_what_it_refers_to(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    value = data.draw(candidates(schema))
    place, reference = data.draw(
        st.sampled_from([("$defs", "#/$defs/it"), ("definitions", "#/definitions/it"), ("x-parts", "#/x-parts/it")])
    )
    referring = {"$ref": reference, place: {"it": schema}}
    assert problems(referring) == []
    assert Validator(referring).accepts(value) == Validator(schema).accepts(value)


digits = st.text("0123456789", min_size=1, max_size=25)
numbers = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-"]),
    st.just("0") | digits.map(lambda text: text.lstrip("0") or "0"),
    st.just("") | digits.map(lambda text: "." + text),
    st.just("") | st.builds("{}{}".format, st.sampled_from(["e", "E-", "e+"]), st.integers(0, 400)),
)
LIMITS = st.one_of(
    st.integers(-(10**25), 10**25),
    st.integers(-20, 20),
    st.floats(-(2**53), 2**53),
    st.sampled_from([2**53, 2**64, 0.1, 0.3, -2.5, 1.0, 1e22]),
)


@st.composite
def numbers_near(draw: st.DrawFn, limit: float) -> str:
    """Numbers at a limit or as near as we like; any number now and then."""
    bound = Decimal(repr(limit))
    if abs(bound) >= 2**53:
        near = int(bound) + draw(st.integers(-2, 2))
        return draw(st.sampled_from([f"{near}", f"{near}.0", f"{near}.000000000000000000000"]))
    with localcontext(prec=400):
        step = draw(st.sampled_from([-1, 0, 1])) * Decimal(10) ** -draw(st.integers(0, 40))
        return draw(numbers | st.just(f"{bound + step:f}") | st.just(f"{bound + step}0" if step else f"{bound}"))


@settings(max_examples=MANY)
@given(st.data(), LIMITS)
def test_numbers_are_compared_by_all_their_digits(data: st.DataObject, limit: float) -> None:
    text = data.draw(numbers_near(limit))
    number, bound = Decimal(text), Decimal(repr(limit))
    for keyword, holds in [
        ("maximum", number <= bound),
        ("exclusiveMaximum", number < bound),
        ("minimum", number >= bound),
        ("exclusiveMinimum", number > bound),
        ("const", number == bound),
    ]:
        assert (Validator({keyword: limit}).failures(text.encode()) == []) == holds, keyword
    if number.adjusted() < 27:
        with localcontext(prec=500):
            whole = number == number.to_integral_value()
        assert (Validator({"type": "integer"}).failures(text.encode()) == []) == whole


@given(st.lists(numbers, max_size=5))
def test_no_digit_of_a_number_is_lost(texts: list[str]) -> None:
    values, failures = read(",".join(texts).encode())
    assert failures == []
    assert [Decimal(repr(value)) if isinstance(value, float) else Decimal(value) for value in values] == [
        Decimal(text) for text in texts
    ]


@st.composite
def repeating(draw: st.DrawFn) -> str:
    return Speller(draw).repeating(3)


def repeats(text: str) -> bool:
    found = []

    def check(pairs: list[tuple[str, Any]]) -> None:
        found.append(len({name for name, _ in pairs}) < len(pairs))

    json.loads(text, object_pairs_hook=check)
    return any(found)


@settings(max_examples=MANY)
@given(st.lists(repeating(), min_size=1, max_size=4))
def test_a_key_is_found_repeated_exactly_where_it_is(texts: list[str]) -> None:
    values, failures = read(",".join(texts).encode())
    assert len(values) == len(texts)
    assert [failure.index for failure in failures] == [n for n, text in enumerate(texts) if repeats(text)]
    for failure in failures:
        assert parse(failure.pointer)


moments = st.builds(
    "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{}{}".format,
    st.integers(0, 9999) | st.sampled_from([1900, 2000, 2023, 2024]),
    st.integers(0, 13) | st.just(2),
    st.integers(0, 32) | st.integers(28, 31),
    st.integers(0, 25),
    st.integers(0, 61),
    st.integers(0, 61),
    st.sampled_from(["", ".", ".0", ".123456789", ".1234567890"]),
    st.sampled_from(["Z", "", "z", "+00:00", "-23:59", "+24:00", "+0100", "Z "]),
)


@settings(max_examples=MANY)
@given(moments)
def test_a_date_time_is_one_in_the_calendar(text: str) -> None:
    assert is_date_time(text) == in_the_calendar(text)
    assert Validator({"format": "date-time"}).accepts(text) == in_the_calendar(text)


places = st.lists(st.sampled_from([*NAMES[:4], "0", "1"]), max_size=3).map(tuple)
keyed = st.recursive(
    st.sampled_from(["k", "", "x" * 600, "é", None, 7]),
    lambda values: (
        st.lists(values, max_size=2) | st.dictionaries(st.sampled_from([*NAMES[:4], "0"]), values, max_size=4)
    ),
    max_leaves=6,
)


def pointed_at(value: Any, place: tuple[str, ...]) -> list[Any]:
    """What a pointer leads to, as a list of one; of none where it leads nowhere."""
    for name in place:
        at = index(name)
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and at is not None and at < len(value):
            value = value[at]
        else:
            return []
    return [value]


@settings(max_examples=MANY)
@given(places, st.booleans(), st.lists(keyed, max_size=4), st.data())
def test_the_key_of_an_entry_is_what_the_pointer_leads_to(
    place: tuple[str, ...], required: bool, values: list[Any], data: st.DataObject
) -> None:
    found, failures = RoutingKey(place, required).keys(",".join(data.draw(spelled(v)) for v in values).encode())
    failed = {failure.index for failure in failures}
    for n, value in enumerate(values):
        led = pointed_at(value, place)
        good = isinstance(led[0], str) and 0 < len(led[0].encode()) <= 512 if led else not required
        assert (n not in failed) == good
        if good:
            assert found[n] == (led[0] if led else None)
