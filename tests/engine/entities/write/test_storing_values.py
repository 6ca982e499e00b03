"""What schemas make of values, as observations hold it: types, converters, constraints, names."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.entities.store import Store
from headrace.errors import ConstraintViolation, StoreResolutionFailed
from headrace.schema.entity.identity import entity_id

LAST_MS = 4_102_444_800_000


def converter(function: str, given: str, made: str) -> dict[str, Any]:
    return {"from": given, "to": made, "function": function, "deterministic": True}


NANOS, MILLIS, SECONDS = (converter(f"timestamp_{unit}_to_iso", "number", "date") for unit in ("nanos", "ms", "s"))
TO_TEXT = converter("number_to_string", "number", "string")
TO_NUMBER = converter("string_to_number", "string", "number")
FLAG_TO_TEXT = converter("boolean_to_string", "boolean", "string")
TO_FLAG = converter("string_to_boolean", "string", "boolean")


def stored(store: Store, field: dict[str, Any], value: Any) -> tuple[dict[str, Any], list[Any]]:
    """The fields and the fragments of a value, and whether both together are what was given."""
    store.register({"fields": {"key": {"type": "string"}, "value": field}, "canonical_name_fields": ["key"]}, "thing")
    store.store({"entity_type": "thing", "key": "k", "value": value})
    one = store.observations("thing")[0]
    fields, fragments = one["fields"], one.get("fragments", [])
    assert {**fields, **{fragment["key"]: fragment["value"] for fragment in fragments}} == {"key": "k", "value": value}
    fields.pop("key")
    return fields, fragments


@pytest.mark.parametrize(
    ("kind", "fitting", "others"),
    [
        ("string", ["", "é"], [1, True, [], {}]),
        ("number", [0, -1.5, 2**70], ["1", True, [], {}]),
        ("boolean", [True, False], [0, 1, "true", []]),
        ("date", ["2026-01-31", "2026-01-31T10:00:00Z"], ["2026-02-31", "soon", 5]),
        ("array", [[], [1, "a", None]], [{}, "[]", 1]),
        ("object", [{}, {"a": [None]}], [[], "{}", 1]),
    ],
)
def test_a_value_is_a_field_where_it_is_of_the_type_and_a_fragment_where_not(
    store: Store, kind: str, fitting: list[Any], others: list[Any]
) -> None:
    fields = {"key": {"type": "string"}, "value": {"type": kind}}
    store.register({"fields": fields, "canonical_name_fields": ["key"]}, "thing")
    values = [None, *fitting, *others]
    answer = store.store(*({"entity_type": "thing", "key": str(n), "value": v} for n, v in enumerate(values)))
    found = store.observations("thing")
    assert [one["fields"].get("value", "nothing") for one in found] == [None, *fitting, *["nothing"] * len(others)]
    fragments = [{"key": "value", "value": value, "reason": "unknown_field"} for value in others]
    assert [one["fragments"][0] for one in found if "fragments" in one] == fragments
    assert [one["unknown_fields"] for one in answer["entities"]] == [[]] * (1 + len(fitting)) + [["value"]] * len(
        others
    )


@pytest.mark.parametrize(
    ("field", "value", "made"),
    [
        ({"type": "date", "converters": [NANOS]}, 1_700_000_000_123_999_999, "2023-11-14T22:13:20.123Z"),
        ({"type": "date", "converters": [NANOS]}, 9_007_199_254_740_993, "1970-04-15T05:59:59.254Z"),
        ({"type": "date", "converters": [NANOS]}, LAST_MS * 1_000_000, "2100-01-01T00:00:00.000Z"),
        ({"type": "date", "converters": [MILLIS]}, 0, "1970-01-01T00:00:00.000Z"),
        ({"type": "date", "converters": [MILLIS]}, LAST_MS, "2100-01-01T00:00:00.000Z"),
        ({"type": "date", "converters": [SECONDS]}, 1.5, "1970-01-01T00:00:01.500Z"),
        ({"type": "date", "converters": [SECONDS, MILLIS]}, 1_700_000_000, "2023-11-14T22:13:20.000Z"),
        ({"type": "date", "converters": [SECONDS, MILLIS]}, 1_700_000_000_000, "2023-11-14T22:13:20.000Z"),
        ({"type": "string", "converters": [TO_TEXT]}, 1e21, "1000000000000000000000"),
        ({"type": "string", "converters": [TO_TEXT]}, -0.5, "-0.5"),
        ({"type": "string", "converters": [TO_TEXT, FLAG_TO_TEXT]}, True, "true"),
        ({"type": "number", "converters": [TO_NUMBER]}, " 12.50 ", 12.5),
        ({"type": "number", "converters": [TO_NUMBER]}, "9007199254740993", 9_007_199_254_740_993),
        ({"type": "boolean", "converters": [TO_FLAG]}, " YES", True),
        ({"type": "boolean", "converters": [TO_FLAG]}, "0", False),
    ],
)
def test_a_value_that_can_be_is_converted_and_its_original_kept(
    store: Store, field: Any, value: Any, made: Any
) -> None:
    fields, fragments = stored(store, field, value)
    assert fields == {"value": made} and type(fields["value"]) is type(made)
    kept = {"key": "value", "value": value, "reason": "converted_value_original", "converted_to": field["type"]}
    assert fragments == [kept]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ({"type": "date", "converters": [NANOS]}, (LAST_MS + 1) * 1_000_000),
        ({"type": "date", "converters": [NANOS]}, 0.5),
        ({"type": "date", "converters": [MILLIS]}, -1),
        ({"type": "date", "converters": [SECONDS]}, LAST_MS // 1000 + 1),
        ({"type": "date", "converters": [SECONDS]}, "5"),
        ({"type": "number", "converters": [TO_NUMBER]}, "12abc"),
        ({"type": "number", "converters": [TO_NUMBER]}, ""),
        ({"type": "boolean", "converters": [TO_FLAG]}, "maybe"),
        ({"type": "string", "converters": [TO_TEXT]}, [1]),
    ],
)
def test_a_value_that_cannot_be_converted_is_a_fragment_and_no_field(store: Store, field: Any, value: Any) -> None:
    fields, fragments = stored(store, field, value)
    assert fields == {} and fragments == [{"key": "value", "value": value, "reason": "unknown_field"}]


@pytest.mark.parametrize(
    ("kind", "constraints", "fine", "bad"),
    [
        ("number", {"min": 1, "max": 5}, [1, 5], [0.5, 6]),
        ("string", {"enum": ["a", "b"]}, ["a"], ["c"]),
        ("string", {"pattern": "^[a-z]+$"}, ["abc"], ["A"]),
        ("string", {"banned": ["x"]}, ["y"], ["x"]),
    ],
)
def test_constraints_refuse_or_warn(store: Store, kind: str, constraints: Any, fine: list[Any], bad: list[Any]) -> None:
    fields = {"key": {"type": "string"}, "value": {"type": kind, "constraints": constraints}}
    definition = {"fields": fields, "canonical_name_fields": ["key"]}
    store.register(definition, "strict_thing")
    store.register({**definition, "constraint_violation_policy": "warn"}, "lax_thing")
    for number, value in enumerate([*fine, None]):
        assert store.store({"entity_type": "strict_thing", "key": f"k{number}", "value": value})["store_warnings"] == []
    for value in bad:
        with pytest.raises(ConstraintViolation) as refused:
            store.store({"entity_type": "strict_thing", "key": "k", "value": value})
        answer = store.store({"entity_type": "lax_thing", "key": "k", "value": value})
        [warning] = answer["store_warnings"]
        assert warning["code"] == "CONSTRAINT_VIOLATION"
        for told in (warning, refused.value.facts, refused.value.facts["issues"][0]):
            # JSON has no tuples.
            broken = msgspec.to_builtins(told["constraint_value"])
            assert constraints[told["constraint"]] == (list(broken) if isinstance(broken, tuple) else broken)


def named(store: Store, *entities: dict[str, Any]) -> list[tuple[str, str, str]]:
    answer = store.store(*({"entity_type": "book", **one} for one in entities))
    return [(one["canonical_name"], one["identity_basis"], one["identity_rule"]) for one in answer["entities"]]


def fields(*names: str) -> dict[str, Any]:
    return {name: {"type": "string"} for name in names}


def test_a_name_of_several_parts_needs_them_all(store: Store) -> None:
    store.register(
        {
            "fields": fields("title", "author"),
            "canonical_name_fields": ["title", "author"],
            "canonical_name_strict": True,
        },
        "book",
    )
    same = [{"title": " The  Dune ", "author": "Frank HERBERT"}, {"author": "frank herbert", "title": "the dune"}]
    assert named(store, *same) == [("book:the dune|frank herbert", "schema_rule", "title,author")] * 2
    assert {one["entity_id"] for one in store.observations("book")} == {
        entity_id("local", "book:the dune|frank herbert")
    }
    for lacking in ({"title": "Dune"}, {"title": "Dune", "author": None}, {"title": "Dune", "author": " "}):
        with pytest.raises(StoreResolutionFailed):
            named(store, lacking)


def test_the_first_alternative_that_is_complete_names_an_entity(store: Store) -> None:
    rules = [{"composite": ["isbn"]}, {"composite": ["title", "author"]}]
    store.register({"fields": fields("isbn", "title", "author"), "canonical_name_fields": rules}, "book")
    given = [
        {"isbn": "1", "title": "t", "author": "a"},
        {"title": "t", "author": "a"},
        {"title": "t"},
    ]
    assert named(store, *given) == [
        ("book:1", "schema_rule", "isbn"),
        ("book:t|a", "schema_rule", "title,author"),
        ("book:t", "heuristic_name", "title"),
    ]
    assert [one["identity_rule"] for one in store.observations("book")] == ["isbn", "title,author", "title"]


def test_letters_keep_their_case_in_names_where_the_schema_says_so(store: Store) -> None:
    kept = {"code": {"type": "string", "preserveCase": True}}
    store.register({"fields": kept, "canonical_name_fields": ["code"]}, "book")
    assert [name for name, _, _ in named(store, {"code": "aB"}, {"code": "ab"})] == ["book:aB", "book:ab"]
    assert len({one["entity_id"] for one in store.observations("book")}) == 2


def test_ids_are_the_same_for_the_same_name_whatever_else_is_given(store: Store) -> None:
    store.register({"fields": fields("title"), "canonical_name_fields": ["title"]}, "book")
    answers = [store.store({"entity_type": "book", "title": "Dune", "n": n}, user="ann") for n in range(3)]
    assert {one["entities"][0]["entity_id"] for one in answers} == {entity_id("ann", "book:dune")}
    assert entity_id("ann", "book:dune") != entity_id("ben", "book:dune")
