from __future__ import annotations

from headrace.schema.entity.split import Fragment, Splitter, rejoin_fragments
from schema.entity.samples import NANOS, defined, schema

NANO = 1_700_000_000_123_456_789


def test_what_fits_stays_what_converts_is_kept_twice_and_the_rest_is_a_fragment() -> None:
    given = {"name": "Ada", "age": "36", "born": NANO, "tags": "x", "shoe": 38}
    fields, fragments = Splitter(schema().schema_definition).split(given)
    assert fields == {"name": "Ada", "age": 36, "born": "2023-11-14T22:13:20.123Z"}
    assert fragments == (
        Fragment("age", "36", "converted_value_original", "number"),
        Fragment("born", NANO, "converted_value_original", "date"),
        Fragment("tags", "x", "unknown_field"),
        Fragment("shoe", 38, "unknown_field"),
    )
    assert rejoin_fragments(fields, fragments) == given


def test_an_explicit_null_is_a_value_of_any_field_and_a_fragment_elsewhere() -> None:
    fields, fragments = Splitter(schema().schema_definition).split({"email": None, "born": None, "other": None})
    assert fields == {"email": None, "born": None}
    assert fragments == (Fragment("other", None, "unknown_field"),)


def test_a_value_that_its_validator_refuses_is_kept_as_a_fragment() -> None:
    splitter = Splitter(schema().schema_definition)
    fields, fragments = splitter.split({"email": "nobody"})
    assert (fields, fragments) == ({}, (Fragment("email", "nobody", "unknown_field"),))
    assert splitter.complaint(fragments[0])[0] == "VALIDATOR_FAILED"


def test_a_validator_judges_what_conversion_made() -> None:
    field = {"type": "date", "converters": [NANOS], "validator": "iso_date"}
    fields, fragments = Splitter(defined({"on": field}).schema_definition).split({"on": NANO})
    assert fields == {}
    assert fragments == (Fragment("on", NANO, "unknown_field"),)


def test_a_nested_value_is_not_touched() -> None:
    nested = {"a": [1, {"b": None}], "c": 10**25}
    fields, fragments = Splitter(defined({"o": "object", "l": "array"}).schema_definition).split(
        {"o": nested, "l": [nested]}
    )
    assert fields == {"o": nested, "l": [nested]}
    assert fragments == ()
