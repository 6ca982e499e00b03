"""What fragments make of a schema, and why not."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.reduce.fragments.candidates import Candidate, candidates, update_of
from headrace.reduce.fragments.rules import BANNED, Banned, Settings
from headrace.schema.entity.nodes import Converter, Field, ReducerConfig, Schema
from headrace.schema.entity.update import UpdatedSchema, apply_update
from headrace.schema.entity.versions import Bump
from reduce.fragments.samples import stats
from reduce.policies.samples import schema

BASE = schema(ReducerConfig({}), name="string")


def found(
    values: list[Any], key: str = "extra", sources: int = 2, base: Schema = BASE, members: Any = None, **settings: Any
) -> Candidate:
    """The only candidate of these values."""
    (candidate,) = candidates(stats(values, key, sources, **(members or {})), base, Settings(**settings))
    return candidate


def codes(candidate: Candidate) -> list[str]:
    return [reason.code for reason in candidate.reasons]


def functions(candidate: Candidate) -> list[str]:
    return [converter.function for converter in candidate.converters]


def test_three_values_of_one_type_from_two_sources_are_promoted_as_a_minor_version() -> None:
    candidate = found(["a", "b", "c"])
    assert candidate.promotable is True
    assert candidate.change == "add_field"
    assert candidate.field_type == "string"
    assert candidate.frequency == 3
    assert candidate.type_share == 1.0
    assert candidate.sources == 2
    assert candidate.entities == 3
    made = apply_update(BASE, update_of([candidate]))
    assert isinstance(made, UpdatedSchema)
    assert made.bump == Bump.MINOR
    assert made.schema.schema_version == "1.2.0"
    assert made.schema.schema_definition.fields["extra"] == Field("string")


@pytest.mark.parametrize(
    ("values", "sources", "code"),
    [
        (["a", "b"], 2, "too_few_occurrences"),
        (["a", "b", "c"], 1, "too_few_sources"),
        (["a"] * 94 + [[]] * 6, 2, "mixed_types"),
        ([None] * 3, 2, "no_values"),
    ],
)
def test_what_falls_short_says_of_what(values: list[Any], sources: int, code: str) -> None:
    assert codes(found(values, sources=sources)) == [code]


def test_ninety_five_of_a_hundred_are_enough_and_exactly_so() -> None:
    assert found(["a"] * 95 + [[]] * 5).promotable
    assert codes(found(["a"] * 949 + [[]] * 51)) == ["mixed_types"]


def test_every_reason_is_given_at_once() -> None:
    assert codes(found(["a", 1], "_test_", sources=1)) == [
        "blacklisted",
        "invalid_name",
        "too_few_occurrences",
        "too_few_sources",
        "mixed_types",
    ]


def test_a_conservative_global_schema_asks_for_twice_as_many_and_more_alike() -> None:
    assert codes(found(["a"] * 5, global_conservative=True)) == ["too_few_occurrences"]
    assert found(["a"] * 6, global_conservative=True).promotable
    assert codes(found(["a"] * 99 + [[]], global_conservative=True)) == ["mixed_types"]
    assert found(["a"] * 3, global_conservative=True, user_id="local").promotable


def test_trusted_sources_of_a_user_schema_need_half_as_many_and_less_alike() -> None:
    relaxed: dict[str, Any] = {"trusted_source_relaxation": True, "user_id": "local"}
    assert found(["a"] * 2, **relaxed).promotable
    assert codes(found(["a"], **relaxed)) == ["too_few_occurrences", "too_few_sources"]
    assert found(["a"] * 90 + [[]] * 10, **relaxed).promotable
    assert codes(found(["a"] * 2, members={"observation_source": "sensor"}, **relaxed)) == ["too_few_occurrences"]
    assert codes(found(["a"] * 2, trusted_source_relaxation=True)) == ["too_few_occurrences"]


@pytest.mark.parametrize("name", ["x", "a" * 51, "has space", "_edge", "edge_", "é_name", "entity_type", ""])
def test_names_that_are_no_fields_are_refused(name: str) -> None:
    assert codes(found(["a"] * 3, name)) == ["invalid_name"]


@pytest.mark.parametrize("name", ["ab", "a" * 50, "a_b", "A1"])
def test_names_that_are_fields_are_taken(name: str) -> None:
    assert found(["a"] * 3, name).promotable


def test_blacklists_are_globs_in_any_case_of_all_or_of_one_type_or_user() -> None:
    def refused(name: str, *banned: Banned, **settings: Any) -> bool:
        return codes(found(["a"] * 3, name, banned=banned, **settings)) == ["blacklisted"]

    assert "blacklisted" in codes(found(["a"] * 3, "_TEST_x"))
    assert refused("my_Debug", *BANNED) and not refused("debugger", *BANNED)
    assert (
        refused("a_mid_b", Banned("A*B")) and not refused("axb_c", Banned("a*b")) and not refused("aXb", Banned("a.b"))
    )
    assert refused("extra", Banned("extra", entity_type="contact")) and not refused("extra", Banned("*", "invoice"))
    assert refused("extra", Banned("*", user_id="ada"), user_id="ada")
    assert not refused("extra", Banned("*", user_id="ada"), user_id="bob")
    assert not refused("extra", Banned("*", user_id="ada"))


def test_what_was_decided_is_not_done_again() -> None:
    assert codes(found(["a"] * 3, decided=frozenset(["extra"]))) == ["decided"]


@pytest.mark.parametrize(
    ("values", "kind", "needs"),
    [
        ([1, 2.5, -3], "number", []),
        ([0.1, 0.2, 0.3], "number", []),
        (["1", "2", "17"], "number", ["string_to_number"]),
        (["12", 13, "-1.5"], "number", ["string_to_number"]),
        (["0", "1", "1"], "boolean", ["string_to_boolean"]),
        (["0", "1", 17], "number", ["string_to_number"]),
        (["yes", "No", True], "boolean", ["string_to_boolean"]),
        ([True, False, True], "boolean", []),
        (["2026-01-31", "2026-02-01T10:00:00Z", "2026-02-01"], "date", []),
        ([1_700_000_000, 1_700_000_001.5, 1_700_000_002], "date", ["timestamp_s_to_iso"]),
        ([1_700_000_000_123] * 3, "date", ["timestamp_ms_to_iso"]),
        ([1_700_000_000_123_456_789] * 3, "date", ["timestamp_nanos_to_iso"]),
        ([1_700_000_000_123, 1_700_000_000, "2026-01-31"], "date", ["timestamp_s_to_iso", "timestamp_ms_to_iso"]),
        ([1_700_000_000, 17, 1_700_000_002], "number", []),
        ([1_700_000_000_123_456] * 3, "number", []),
        (["01234", "00420", "99999"], "string", []),
        (["12345678901234567890"] * 3, "string", []),
        (["2026-01-31", "soon", "12"], "string", []),
        ([[1], [], [2]], "array", []),
        ([{}, {"a": 1}, {}], "object", []),
    ],
)
def test_the_type_is_what_the_values_mean_with_the_converters_they_need(
    values: list[Any], kind: str, needs: list[str]
) -> None:
    candidate = found(values)
    assert candidate.promotable is True
    assert candidate.field_type == kind
    assert functions(candidate) == needs


def test_great_numbers_are_no_moments_where_the_name_says_so() -> None:
    values = [1_700_000_000] * 3
    assert [found(values, name).field_type for name in ("created_at", "paid", "id", "account_id", "total_price")] == [
        *("date", "date"),
        *("number", "number", "number"),
    ]


def test_the_types_of_values_are_told_even_where_they_are_mixed() -> None:
    candidate = found(["a", 1, True, "2026-01-31", [], {}])
    assert candidate.types == dict.fromkeys(["boolean", "array", "object", "number", "date", "string"], 1)
    assert not candidate.promotable


def test_confidence_grows_with_evidence() -> None:
    little, more, known, converted = (
        found(values, key).confidence
        for values, key in (
            (["a"] * 3, "extra"),
            (["a"] * 10, "extra"),
            (["a"] * 10, "home_address"),
            (["1"] * 10, "home_address"),
        )
    )
    assert converted < known == 1.0
    assert 0.8 < little < more < known


@pytest.mark.parametrize(
    ("field", "values", "needs"),
    [
        (Field("date"), [1_700_000_000] * 3, ["timestamp_s_to_iso"]),
        (Field("date"), [17, 18, 19], ["timestamp_s_to_iso"]),
        (Field("date"), [10_000_000_000, 1_700_000_000_000, 999_999_999_999], ["timestamp_ms_to_iso"]),
        (Field("date"), [1_700_000_000_123_456_789] * 3, ["timestamp_nanos_to_iso"]),
        (Field("number"), ["007", "12", "1e3"], ["string_to_number"]),
        (Field("string"), [1, 2, 2.5], ["number_to_string"]),
        (Field("boolean"), ["yes", "0", "true"], ["string_to_boolean"]),
        (Field("string"), [True, False, True], ["boolean_to_string"]),
        (Field("string"), [True, 1, 1], ["number_to_string", "boolean_to_string"]),
    ],
)
def test_mistyped_values_of_a_field_propose_the_converter_for_them(
    field: Field, values: list[Any], needs: list[str]
) -> None:
    base = schema(ReducerConfig({}), extra=field)
    candidate = found(values, base=base)
    assert candidate.promotable is True
    assert candidate.change == "add_converters"
    assert functions(candidate) == needs
    made = apply_update(base, update_of([candidate]))
    assert isinstance(made, UpdatedSchema)
    assert made.schema.schema_definition.fields["extra"].converters == candidate.converters
    assert candidates(stats(values), made.schema, Settings()) == []


def test_values_that_no_converter_takes_say_so() -> None:
    assert codes(found(["x"] * 3, base=schema(ReducerConfig({}), extra="number"))) == ["no_converter"]
    assert codes(found(["x"] * 3 + ["12"] * 3, base=schema(ReducerConfig({}), extra="number"))) == ["mixed_types"]


def test_values_that_a_field_takes_by_now_are_no_candidates() -> None:
    taking = Field("date", converters=(Converter("number", "date", "timestamp_ms_to_iso"),))
    values = stats([1_700_000_000_123, 1_700_000_000, "2026-01-31"])
    assert candidates(values, schema(ReducerConfig({}), extra=taking), Settings()) == []


def test_a_promoted_field_takes_the_rest_too_where_that_is_often_enough_given() -> None:
    candidate = found([True] * 97 + [3] * 3 + ["x"] * 3000)
    assert candidate.field_type == "string"
    assert functions(candidate) == ["number_to_string", "boolean_to_string"]
