"""Extraction equals the reference: what columns hold is what ``query.values`` finds in promoted events."""

from __future__ import annotations

import json
from fractions import Fraction
from random import Random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from extract.expected import assert_equal, definition, documents_of, events, field
from headrace.extract.columns import Extractor
from headrace.query.search import PARTS, Kind
from headrace.schema import pointer
from schema.lens.oracle import spell
from schema.lens.strategies import Case, Manner, cases, pointers_of

# One way opens events one by one, the other by DuckDB.
WAYS = (1_000, 0)

NAMES = ["a", "b", "", "a/b", "m~n", "a.b", ' q"', "é\u2028", "0", "1", "-", "*", "$", "'", "\x00", "a\\b", "A"]
MOMENTS = st.builds(
    "{}{}{}{}{}{}".format,
    st.sampled_from(["", " ", "\t"]),
    st.dates().map(str)
    | st.sampled_from(["2024-02-29", "2023-02-29", "1900-02-29", "0000-01-01", "2026-13-01", "2026"]),
    st.sampled_from(["T", "t", " ", "_", ""]),
    st.times().map(lambda time: time.isoformat("seconds")) | st.sampled_from(["", "24:00:00", "10:00", "23:59:60"]),
    st.sampled_from(["", ".", ".1", ".12", ".123", ".1239", ".123456789", ".1234567890", ".a", ",123", ".12x"]),
    st.sampled_from(["", "Z", "z", "+02:00", "-05:30", "+24:00", "+23:60", "+0200", "-00:00", " "]),
)
NUMBERS = st.sampled_from(
    "0 -0 -0.0 1.0 2.50 1e5 1E+2 1e-7 5e-324 1e22 1e308 1e400 -1e400 -1.9 1774432800000 1774432800000.9 "
    "9007199254740993 9007199254740993.0 9007199254740992.5 1e-400 -1e-400 1e23 0.3e1 12.50e1 4e-1 1e1001 "
    "1e99999999999999999999 1e-99999999999999999999 0e99999999999999999999 "
    "999999999999999999 -999999999999999999 1000000000000000000 "
    "9223372036854775807 9223372036854775808 -9223372036854775808 -9223372036854775809 "
    f"123456789012345678901234567890.5 {'9' * 400}".split()
)
STRINGS = (
    "20240501,20240230, 20240501 ,2024050,20240501123000,20240501126000,2023366,202405011,"
    '503, 503 ,-5,007,+5,5.0,1e3,.5,5.,inf,nan,true, FALSE ,null,[1],{},Hello World!,a_b-c,x\x00y,\\,",/,\x7f\x80,'
    "İstanbul ΣΑΣ straße ǅ,𝔘𝔫𝔦,１２,ﬁ,ééééééééé"
)
TEXTS = (
    st.text(max_size=12) | st.text(st.characters(max_codepoint=127), max_size=30) | st.sampled_from(STRINGS.split(","))
)
SPELLED = TEXTS.map(json.dumps) | TEXTS.map(lambda text: json.dumps(text, ensure_ascii=False)) | MOMENTS.map(json.dumps)
SCALARS = SPELLED | NUMBERS | st.integers().map(str) | st.floats(allow_nan=False, allow_infinity=False).map(repr)
ANYTHING = st.recursive(
    SCALARS | st.sampled_from(["null", "true", "false", "{}", "[]", "[[]]", '"\\/\\u00e9"']),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: f"[{', '.join(items)}]")
        | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4).map(
            lambda members: "{" + " ,".join(f"{json.dumps(name)} : {value}" for name, value in members.items()) + "}"
        )
    ),
    max_leaves=8,
)


PAYLOADS = st.builds("{}{}{}".format, st.sampled_from(["", " \n"]), ANYTHING, st.sampled_from(["", "\t "]))


def _every_kind(place: tuple[str, ...], version: int = 1) -> dict[str, Any]:
    kinds = {str(kind): field(kind, place, version) for kind in Kind}
    kinds["text"]["contains"] = True
    return kinds | {"lower": field("keyword", place, version, normalizer="lowercase_v1")}


@settings(max_examples=150)
@given(st.lists(PAYLOADS, max_size=20))
def test_any_json_value_has_the_values_of_the_reference(payloads: list[str]) -> None:
    made = definition(_every_kind(()))
    for few in WAYS:
        assert_equal(Extractor(made, few=few).columns(events(payloads)), made, documents_of(payloads))


@settings(max_examples=100)
@given(st.lists(PAYLOADS, max_size=12), st.lists(st.sampled_from(NAMES), max_size=3))
def test_any_pointer_leads_where_the_reference_goes(payloads: list[str], place: list[str]) -> None:
    made = definition(_every_kind(tuple(place)))
    for few in WAYS:
        assert_equal(Extractor(made, few=few).columns(events(payloads)), made, documents_of(payloads))


@settings(max_examples=150)
@given(
    cases(Manner.LOOSE, lenses=3) | cases(Manner.GENTLE, lenses=3), st.integers(0, 3), st.randoms(use_true_random=False)
)
def test_events_of_every_version_have_the_values_they_are_promoted_to(case: Case, style: int, random: Random) -> None:
    known = sorted({names for version in case.documents for names in pointers_of(version[0])})
    fields: dict[str, Any] = {}
    for number, place in enumerate(random.sample(known, min(4, len(known)))):
        kinds = _every_kind(place, random.randint(1, case.latest))
        fields |= {f"{kind}{number}": kinds[kind] for kind in random.sample(sorted(kinds), 3)}
    made = definition(fields, case.wire, rollups=_summing([random.choice(known) for _ in range(5)]))
    rows = [(version, row) for version in range(1, case.latest + 1) for row in range(len(case.documents[0]))]
    if random.random() < 0.3:
        random.shuffle(rows)
    stored = [spell(case.documents[version - 1][row], style) for version, row in rows]
    latest = [msgspec.json.decode(spell(case.documents[-1][row])) for _, row in rows]
    for few in WAYS:
        table = Extractor(made, few=few).columns(events(stored, [version for version, _ in rows]))
        assert_equal(table, made, latest)


def _summing(places: list[tuple[str, ...]]) -> dict[str, Any]:
    names = [f"{part}JsonPointer" for part in PARTS]
    measure = {name: pointer.text(place) for name, place in zip(names, places, strict=True)}
    return {"r": {"intervals": ["1m"], "measures": {"m": {"kind": "summary_parts", **measure}}}}


DIGITS = st.text("0123456789", min_size=1, max_size=25)
SPELLED_NUMBERS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-"]),
    DIGITS.map(lambda digits: digits.lstrip("0") or "0"),
    st.just("") | DIGITS.map(lambda digits: f".{digits}"),
    st.just("") | st.builds("{}{}".format, st.sampled_from(["e", "E", "e-", "e+"]), st.integers(0, 400)),
)


@settings(max_examples=150)
@given(st.lists(SPELLED_NUMBERS, min_size=1, max_size=6), st.booleans())
def test_numbers_are_what_their_digits_say(spelled: list[str], is_array: bool) -> None:
    """Held to fractions, which know nothing of doubles."""
    exact = [Fraction(text) for text in spelled]
    payloads = [f"[{', '.join(spelled)}]"] if is_array else spelled
    made = definition({kind: field(kind, ()) for kind in ("integer", "float", "date")})
    wanted: dict[str, list[Any]] = {
        "integer": [number.numerator if number.denominator == 1 else None for number in exact],
        "date": [int(number) for number in exact],
        "float": [_nearest(number) for number in exact],
    }
    for few in WAYS:
        table = Extractor(made, few=few).columns(events(payloads))
        odd = table.column("odd").to_pylist()
        for kind, values in wanted.items():
            held = table.column(f"f.{kind}").to_pylist()
            in_rows = [values] if is_array else [[value] for value in values]
            for row, (expected, found) in enumerate(zip(in_rows, held, strict=True)):
                assert odd[row] or _listed(found) == [value for value in expected if value is not None]
        millis = [wanted["date"]] if is_array else [[value] for value in wanted["date"]]
        assert odd == [any(not -(2**63) <= value < 2**63 for value in row) for row in millis]


def _nearest(number: Fraction) -> float | None:
    try:
        return float(number) + 0.0
    except OverflowError:
        return None


def _listed(found: Any) -> list[Any]:
    return [] if found is None else found if isinstance(found, list) else [found]
