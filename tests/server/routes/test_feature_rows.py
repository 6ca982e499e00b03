"""What a pipeline does after a change, with every kind of step and of key, and what is never allowed, over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from schema.descriptor.payloads import derivation, event, op, table
from schema.descriptor.test_forbidden import FORBIDDEN
from server.pipelines import Payload, Pipeline

if TYPE_CHECKING:
    from server.conftest import Api

FINE = {"user": "u", "amount": 1.0, "n": 1}
CITY = {"type": "str", "default": "Ulm"}


@pytest.fixture
def pipeline(api: Api) -> Pipeline:
    made = Pipeline(api)
    assert made.register().status_code == 200
    made.push(FINE, {**FINE, "amount": 2.5, "n": 2})
    return made


def push(pipeline: Pipeline, fields: Payload) -> Any:
    return pipeline.api.post(f"/v1/push/{pipeline.event}", fields)


def stored(pipeline: Pipeline, name: str | None = None) -> list[Payload]:
    found: list[Payload] = pipeline.api.get(f"/v1/stream/events/{name or pipeline.event}").json()
    return found


def changed(pipeline: Pipeline, field: str, to: Any, **terms: Any) -> dict[str, Payload]:
    """Register the event with one field another or, for None, gone; answers what is registered then."""
    given = pipeline.changed()
    given[pipeline.event]["schema"][field] = to
    if to is None:
        del given[pipeline.event]["schema"][field]
    answer = pipeline.register(given, **terms)
    assert answer.status_code == 200, answer.text
    return given


# -- what is pushed and counted after a change


def test_an_optional_field_may_be_pushed_once_it_is_there(pipeline: Pipeline, code_of: Callable[[Any], str]) -> None:
    assert code_of(push(pipeline, {**FINE, "city": "Ulm"})) == "unknown_field"
    changed(pipeline, "city", {"type": "str", "required": False})
    for fields in ({**FINE, "city": "Ulm"}, FINE, {**FINE, "city": None}):
        assert push(pipeline, fields).status_code == 200
    assert [one.get("city") for one in stored(pipeline)] == [None, None, "Ulm", None, None]
    row = pipeline.row(pipeline.table)
    assert row is not None and row["count"] == 5


def test_a_default_stands_in_events_that_came_before_the_field(pipeline: Pipeline) -> None:
    given = changed(pipeline, "city", CITY)
    pipeline.push(FINE, {**FINE, "city": "Bonn"})
    assert [one["city"] for one in stored(pipeline)] == ["Ulm", "Ulm", "Ulm", "Bonn"]
    given[pipeline.table]["agg"]["cities"] = op("event_type_mix", field="city")
    assert pipeline.register(given).status_code == 200
    assert pipeline.row(pipeline.table) == {
        "count": 4, "total": 5.5, "whole": 5, "cities": {"Ulm": 0.75, "Bonn": 0.25},
    }  # fmt: skip


def test_a_field_that_is_required_now_is_missed_in_pushes(pipeline: Pipeline, code_of: Callable[[Any], str]) -> None:
    changed(pipeline, "city", "str", force=True)
    refused = push(pipeline, FINE)
    assert refused.status_code == 400
    assert code_of(refused) == "missing_field"
    assert refused.json()["error"]["path"] == "/city"
    assert push(pipeline, {**FINE, "city": "Ulm"}).status_code == 200
    assert pipeline.row(pipeline.table) == {"count": 3, "total": 4.5, "whole": 4}


def test_a_widened_field_takes_fractions_and_its_sum_goes_on(pipeline: Pipeline, code_of: Callable[[Any], str]) -> None:
    assert code_of(push(pipeline, {**FINE, "n": 0.5})) == "schema_mismatch"
    changed(pipeline, "n", "f64")
    assert push(pipeline, {**FINE, "n": 0.5}).status_code == 200
    assert pipeline.row(pipeline.table) == {"count": 3, "total": 4.5, "whole": 3.5}


def test_a_field_that_was_removed_is_refused_in_pushes(pipeline: Pipeline, code_of: Callable[[Any], str]) -> None:
    assert push(pipeline, {**FINE, "note": "x"}).status_code == 200
    changed(pipeline, "note", None, force=True)
    assert code_of(push(pipeline, {**FINE, "note": "x"})) == "unknown_field"
    assert push(pipeline, FINE).status_code == 200
    assert pipeline.row(pipeline.table) == {"count": 4, "total": 5.5, "whole": 5}


def test_a_field_is_renamed_by_a_derivation_without_loss(pipeline: Pipeline) -> None:
    given, name = pipeline.changed(), f"Priced{pipeline.event}"
    given["priced"] = derivation(name, pipeline.event, {"op": "rename", "mapping": {"amount": "price"}})
    given["prices"] = table(f"Prices{pipeline.event}", name, spent=op("sum", field="price"))
    answer = pipeline.register(given)
    assert answer.status_code == 200
    assert answer.json()["changed"] == []
    assert pipeline.row(f"Prices{pipeline.event}") == {"spent": 3.5}
    assert pipeline.row(pipeline.table) == {"count": 2, "total": 3.5, "whole": 3}


@pytest.mark.parametrize("setting", [{"dedupe_key": "note"}, {"dedupe_window": "2h"}], ids=["key", "window"])
def test_what_was_remembered_is_forgotten_with_the_rule(pipeline: Pipeline, setting: Payload) -> None:
    named = {**FINE, "id": "a", "note": "a"}
    assert not push(pipeline, named).json()["idempotent_replay"]
    given = pipeline.changed()
    given[pipeline.event].update(setting)
    assert pipeline.register(given, force=True).status_code == 200
    assert [push(pipeline, named).json()["idempotent_replay"] for _ in range(2)] == [False, True]


def test_a_changed_feature_is_computed_from_the_past_where_one_asks_for_it(pipeline: Pipeline) -> None:
    given = pipeline.changed()
    given[pipeline.table]["agg"]["total"]["params"]["where"] = "(n > 1)"
    given[pipeline.derived]["ops"][0]["expr"] = "(amount > 0.5)"
    assert pipeline.register(given, force=True, backfill=True).status_code == 200
    assert pipeline.row(pipeline.table) == {"count": 2, "total": 2.5, "whole": 3}
    assert pipeline.row(pipeline.over_derived) == {"large": 2}


def test_a_feature_that_was_removed_and_comes_back_counts_what_came_meanwhile(pipeline: Pipeline) -> None:
    less = pipeline.changed()
    del less[pipeline.table]["agg"]["total"]
    assert pipeline.register(less, force=True).status_code == 200
    pipeline.push(FINE)
    assert pipeline.row(pipeline.table) == {"count": 3, "whole": 4}
    answer = pipeline.register()
    assert answer.json()["changed"] == [{"name": pipeline.table, "added_features": ["total"]}]
    assert pipeline.row(pipeline.table) == {"count": 3, "total": 4.5, "whole": 4}
    assert pipeline.register(less, force=True).status_code == 200
    assert pipeline.register(backfill=False).status_code == 200
    assert pipeline.row(pipeline.table) == {"count": 3, "total": None, "whole": 4}


def test_acknowledgements_have_the_version_that_they_were_given_under(pipeline: Pipeline) -> None:
    version = pipeline.version()
    assert push(pipeline, FINE).json()["registry_version"] == version
    changed(pipeline, "city", CITY)
    assert push(pipeline, FINE).json()["registry_version"] == version + 1
    assert pipeline.api.post(f"/v1/push/{pipeline.event}", [FINE, FINE]).json()["registry_version"] == version + 1
    assert pipeline.version() == version + 1


def test_every_refusal_has_the_envelope(api: Api, pipeline: Pipeline) -> None:
    other, version = Pipeline(api), pipeline.version()
    less = pipeline.changed()
    del less[pipeline.table]
    refusals = {
        "registration_conflict": pipeline.register(less),
        "version_conflict": pipeline.register(less, expected_version=version - 1),
        "owned_by": other.register({"taken": pipeline.descriptors[pipeline.event]}),
        "duplicate_name": other.register(
            {"one": other.descriptors[other.event], "two": less[pipeline.event] | {"name": other.event}}
        ),
        "schema_invalid": other.register({"none": {}}),
    }
    for code, answer in refusals.items():
        body = answer.json()
        assert body["error"]["code"] == code
        assert {"code", "message", "errors"} <= body["error"].keys()
        assert body["status"] == ("conflict" if answer.status_code == 409 else "invalid")
        assert body["registry_version"] == version
        assert all(isinstance(body[part], list) for part in ("added", "removed", "changed"))


# -- steps


def test_each_step_does_its_part(pipeline: Pipeline) -> None:
    pipeline.push({**FINE, "note": "7", "amount": 4.0}, {**FINE, "note": "x", "amount": 5.0})
    name, given = f"Shaped{pipeline.event}", pipeline.changed()
    given["shaped"] = derivation(
        name,
        pipeline.event,
        {"op": "filter", "expr": "((note != 'x') or (amount < 2.0))"},  # null or false is not true
        {"op": "with_columns", "exprs": {"a_half": "(amount / 2)", "less": "(a_half - 1)"}},
        {"op": "rename", "mapping": {"user": "who", "n": "amount", "amount": "n"}},
        {"op": "cast", "type_map": {"note": "int"}},
        {"op": "fillna", "defaults": {"note": -1}},
        {"op": "drop", "fields": ["n", "id", "not_there"]},
        {"op": "select", "fields": ["who", "amount", "a_half", "less", "note"]},
    )
    given["noted"] = table(f"Noted{pipeline.event}", name, key=["who"], notes=op("last_n", field="note", n=9))
    assert pipeline.register(given).status_code == 200
    assert stored(pipeline, name) == [
        {"who": "u", "amount": 1, "a_half": 0.5, "less": -0.5, "note": -1},
        {"who": "u", "amount": 1, "a_half": 2.0, "less": 1.0, "note": 7},
    ]
    assert pipeline.row(f"Noted{pipeline.event}") == {"notes": [-1, 7]}


def test_a_derived_event_shows_what_a_table_over_it_sees(pipeline: Pipeline) -> None:
    pipeline.push({**FINE, "amount": 4, "n": 5.0})
    name, given = f"Texts{pipeline.event}", pipeline.changed()
    exprs = {"a": "cast(amount, str)", "b": "cast(n, str)"}
    given["texts"] = derivation(name, pipeline.event, {"op": "with_columns", "exprs": exprs})
    seen = {one: op("last_n", field=one, n=9) for one in exprs}
    given["seen"] = table(f"Seen{pipeline.event}", name, **seen)
    assert pipeline.register(given).status_code == 200
    shown = stored(pipeline, name)
    assert pipeline.row(f"Seen{pipeline.event}") == {one: [event[one] for event in shown] for one in exprs}
    assert [(event["a"], event["b"]) for event in shown] == [("1.0", "1"), ("2.5", "2"), ("4.0", "5")]


# -- keys


ODD = ["", "a|b", "%7C", 'a"\\', "tab\tline\n", "\u0000", "ünï 🜁", " u", "null", "x" * 500]


def test_rows_are_found_by_keys_of_any_characters(api: Api) -> None:
    made = Pipeline(api)
    made.descriptors[made.table]["key"] = ["user", "note"]
    assert made.register().status_code == 200
    pairs = [(one, ODD[number - 1]) for number, one in enumerate(ODD)]
    made.push(*({**FINE, "user": one, "note": other, "n": at} for at, (one, other) in enumerate(pairs)))
    requests = [{"table": made.table, "key": list(pair), "features": ["whole"]} for pair in pairs]
    answer = api.post("/v1/batch_get", {"requests": requests})
    assert answer.json()["results"] == [{"whole": at} for at in range(len(pairs))]
    assert made.row(made.table, ["a", "b|%7C"]) == {}


def test_rows_are_found_by_truths_numbers_and_moments(api: Api) -> None:
    made = Pipeline(api)
    made.descriptors = {
        made.event: event(made.event, {"yes": "bool", "number": "i64", "at": "datetime"}),
        "truths": table(f"Truths{made.event}", made.event, key=["yes"], n=op("count")),
        "numbers": table(f"Numbers{made.event}", made.event, key=["number"], n=op("count")),
        "all": table(f"All{made.event}", made.event, key=["yes", "number", "at"], n=op("count")),
    }
    assert made.register().status_code == 200
    moment, same = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00"
    made.push(*({"yes": number > 0, "number": number, "at": moment} for number in (-(2**63), 0, 1, 2**63 - 1, 1.0)))
    assert [made.row(f"Truths{made.event}", key) for key in (True, False)] == [{"n": 3}, {"n": 2}]
    assert [made.row(f"Numbers{made.event}", key) for key in (1, 2**63 - 1, -(2**63), 7)] == [
        {"n": 2}, {"n": 1}, {"n": 1}, {},
    ]  # fmt: skip
    assert made.row(f"All{made.event}", [True, 1, same]) == {"n": 2}


# -- what is never allowed


@pytest.mark.parametrize("terms", [{}, {"force": True}, {"force": True, "dry_run": True, "cascade": True}])
@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_what_is_forbidden_is_refused_with_force_as_without(api: Api, pattern: str, terms: Payload) -> None:
    descriptors, code, rest = FORBIDDEN[pattern]
    answer = api.post("/v1/register", {"descriptors": descriptors, "app": "forbidden", **terms})
    assert answer.status_code == 400
    assert answer.json()["status"] == "invalid"
    assert [(one["code"], one["path"]) for one in answer.json()["error"]["errors"]] == [(code, f"descriptors{rest}")]
    assert api.get("/v1/registry", app="forbidden").json()["descriptors"] == []
