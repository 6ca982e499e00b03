"""Every kind of change, asked for in every way: what is answered, and what the registry and the state are then.

The versions of the registry count changes of everyone, and these tests are alone with their server.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from server.pipelines import Payload, Pipeline

if TYPE_CHECKING:
    from server.conftest import Api

Descriptors = dict[str, Payload]

#: The rows of the key that all events have, before any change.
USERS = {"count": 3, "total": 6.0, "whole": 6}
LARGE = {"large": 2}


class Change(NamedTuple):
    """A change, whether it needs force, what the diff tells of it, and the rows that differ afterwards."""

    name: str
    make: Callable[[Pipeline, Descriptors], None]
    destructive: bool
    told: Callable[[Pipeline], Payload]
    rows: Callable[[Pipeline], dict[str, Payload | None]] = lambda p: {}


def node(which: str) -> Callable[[Pipeline], str]:
    return lambda p: str(getattr(p, which))


def set_at(which: str, *way: str, to: Any) -> Callable[[Pipeline, Descriptors], None]:
    """Give a member of a node a value."""

    def make(pipeline: Pipeline, given: Descriptors) -> None:
        place: Any = given[node(which)(pipeline)]
        for name in way[:-1]:
            place = place[name]
        place[way[-1]] = to

    return make


def drop(which: str, *way: str) -> Callable[[Pipeline, Descriptors], None]:
    """Take a member of a node away, or the node."""

    def make(pipeline: Pipeline, given: Descriptors) -> None:
        place: Any = given
        for name in (node(which)(pipeline), *way)[:-1]:
            place = place[name]
        del place[(node(which)(pipeline), *way)[-1]]

    return make


def changed(which: str, **told: Any) -> Callable[[Pipeline], Payload]:
    """One node changes."""
    return lambda p: {"changed": [{"name": node(which)(p), **told}]}


def changes(**each: Payload) -> Callable[[Pipeline], Payload]:
    """Several nodes change."""
    return lambda p: {"changed": sorted(({"name": getattr(p, n), **t} for n, t in each.items()), key=_name)}


def _name(item: Payload) -> str:
    return str(item["name"])


def rows(**each: Payload | None) -> Callable[[Pipeline], dict[str, Payload | None]]:
    return lambda p: {str(getattr(p, which)): row for which, row in each.items()}


def add_event(pipeline: Pipeline, given: Descriptors) -> None:
    given["new"] = {"kind": "event", "name": f"New{pipeline.event}", "schema": {"x": "str"}}


def add_table(pipeline: Pipeline, given: Descriptors) -> None:
    given["new"] = {**copy.deepcopy(given[pipeline.table]), "name": f"New{pipeline.table}"}


def add_derivation(pipeline: Pipeline, given: Descriptors) -> None:
    given["new"] = {**copy.deepcopy(given[pipeline.derived]), "name": f"New{pipeline.derived}"}


def rename_field(pipeline: Pipeline, given: Descriptors) -> None:
    schema = given[pipeline.event]["schema"]
    schema["value"] = schema.pop("amount")
    given[pipeline.table]["agg"]["total"]["params"]["field"] = "value"
    given[pipeline.derived]["ops"][0]["expr"] = "(value > 1.0)"


def rename_event(pipeline: Pipeline, given: Descriptors) -> None:
    given[pipeline.event]["name"] = f"Other{pipeline.event}"
    for name in (pipeline.derived, pipeline.table):
        given[name]["upstreams"] = [f"Other{pipeline.event}"]


def remove_event(pipeline: Pipeline, given: Descriptors) -> None:
    """Something else stays, as a payload is not empty."""
    given.clear()
    given["rest"] = {"kind": "event", "name": f"Rest{pipeline.event}", "schema": {"x": "str"}}


def remove_derivation(pipeline: Pipeline, given: Descriptors) -> None:
    del given[pipeline.derived], given[pipeline.over_derived]


def kind_of_derived(pipeline: Pipeline, given: Descriptors) -> None:
    given[pipeline.derived] = {"kind": "event", "name": pipeline.derived, "schema": {"user": "str"}}


CASCADES = "remove event source that others are over"
EVERYTHING = ("derived", "event", "over_derived", "table")
GONE = rows(table=None, over_derived=None)
ZEROED = rows(table={**USERS, "total": None})

CHANGES = [
    Change("add event source", add_event, False, lambda p: {"added": [f"New{p.event}"]}),
    Change(
        "add table",
        add_table,
        False,
        lambda p: {"added": [f"New{p.table}"]},
        lambda p: {f"New{p.table}": USERS},
    ),
    Change("add derivation", add_derivation, False, lambda p: {"added": [f"New{p.derived}"]}),
    Change(
        "add feature",
        set_at("table", "agg", "largest", to={"op": "max", "params": {"field": "amount"}}),
        False,
        changed("table", added_features=["largest"]),
        rows(table={**USERS, "largest": 3.0}),
    ),
    Change(
        "add optional field",
        set_at("event", "schema", "city", to={"type": "str", "required": False}),
        False,
        changed("event", added_fields=[{"name": "city", "type": "str", "required": False}]),
    ),
    Change(
        "add optional field with default",
        set_at("event", "schema", "city", to={"type": "str", "required": False, "default": "x"}),
        False,
        changed("event", added_fields=[{"name": "city", "type": "str", "required": False, "default": "x"}]),
    ),
    Change(
        "add required field with default",
        set_at("event", "schema", "city", to={"type": "str", "default": "x"}),
        False,
        changed("event", added_fields=[{"name": "city", "type": "str", "required": True, "default": "x"}]),
    ),
    Change(
        "add required field without default",
        set_at("event", "schema", "city", to="str"),
        True,
        changed("event", added_fields=[{"name": "city", "type": "str", "required": True, "default": None}]),
    ),
    Change(
        "remove field",
        drop("event", "schema", "note"),
        True,
        changed("event", removed_fields=["note"]),
    ),
    Change(
        "widen field",
        set_at("event", "schema", "n", to="f64"),
        False,
        changed("event", changed_fields=[{"name": "n", "from": "i64", "to": "f64"}]),
    ),
    Change(
        "narrow field",
        set_at("event", "schema", "amount", to="i64"),
        True,
        changes(
            event={"changed_fields": [{"name": "amount", "from": "f64", "to": "i64"}]},
            over_derived={"zeroed_features": ["large"]},
            table={"zeroed_features": ["total"]},
        ),
        rows(table={**USERS, "total": None}, over_derived={}),
    ),
    Change(
        "rename field",
        rename_field,
        True,
        lambda p: {"changed": None},
        rows(table={**USERS, "total": None}, over_derived={}),
    ),
    Change(
        "field no longer required",
        set_at("event", "schema", "n", to={"type": "i64", "required": False}),
        False,
        lambda p: {"changed": None},
    ),
    Change("field now required", set_at("event", "schema", "note", to="str"), True, lambda p: {"changed": None}),
    Change(
        "raise keep_events_for",
        set_at("event", "keep_events_for", to="60d"),
        False,
        changed("event", keep_events_for={"from": "30d", "to": "60d"}),
    ),
    Change(
        "lower keep_events_for",
        set_at("event", "keep_events_for", to="7d"),
        True,
        changed("event", keep_events_for={"from": "30d", "to": "7d"}),
    ),
    Change(
        "remove cold_after",
        drop("event", "cold_after"),
        False,
        changed("event", cold_after={"from": "1h", "to": None}),
    ),
    Change(
        "raise cold_after",
        set_at("event", "cold_after", to="2h"),
        False,
        changed("event", cold_after={"from": "1h", "to": "2h"}),
    ),
    Change(
        "lower cold_after",
        set_at("event", "cold_after", to="30m"),
        True,
        changed("event", cold_after={"from": "1h", "to": "30m"}),
    ),
    Change(
        "change dedupe_key",
        set_at("event", "dedupe_key", to="note"),
        True,
        changed("event", dedupe_key={"from": "id", "to": "note"}),
    ),
    Change(
        "change dedupe_window",
        set_at("event", "dedupe_window", to="2h"),
        True,
        changed("event", dedupe_window={"from": "1d", "to": "2h"}),
    ),
    Change(
        "remove event source",
        remove_event,
        True,
        lambda p: {"added": [f"Rest{p.event}"], "removed": sorted(str(getattr(p, n)) for n in EVERYTHING)},
        GONE,
    ),
    Change(
        CASCADES,
        drop("event"),
        True,
        lambda p: {"removed": sorted(str(getattr(p, n)) for n in EVERYTHING)},
        GONE,
    ),
    Change(
        "rename event source",
        rename_event,
        True,
        lambda p: {"added": [f"Other{p.event}"], "removed": [p.event], "changed": None},
        rows(table={}, over_derived={}),
    ),
    Change("remove table", drop("table"), True, lambda p: {"removed": [p.table]}, rows(table=None, over_derived=LARGE)),
    Change(
        "remove derivation",
        remove_derivation,
        True,
        lambda p: {"removed": sorted([p.derived, p.over_derived])},
        rows(over_derived=None),
    ),
    Change(
        "change steps",
        set_at("derived", "ops", to=[{"op": "filter", "expr": "(amount > 2.0)"}]),
        True,
        lambda p: {"changed": None},
        rows(over_derived={}),
    ),
    Change(
        "remove feature",
        drop("table", "agg", "total"),
        True,
        changed("table", removed_features=["total"]),
        rows(table={"count": 3, "whole": 6}),
    ),
    Change(
        "change operator",
        set_at("table", "agg", "total", "op", to="mean"),
        True,
        changed(
            "table",
            changed_features=[
                {
                    "name": "total",
                    "from": {"op": "sum", "params": {"field": "amount", "window": "1h"}},
                    "to": {"op": "mean", "params": {"field": "amount", "window": "1h"}},
                }
            ],
        ),
        ZEROED,
    ),
    Change(
        "change window",
        set_at("table", "agg", "total", "params", "window", to="5m"),
        True,
        changed(
            "table",
            changed_features=[
                {
                    "name": "total",
                    "from": {"op": "sum", "params": {"field": "amount", "window": "1h"}},
                    "to": {"op": "sum", "params": {"field": "amount", "window": "5m"}},
                }
            ],
        ),
        ZEROED,
    ),
    Change(
        "change parameter",
        set_at("table", "agg", "total", "params", "where", to="(n > 1)"),
        True,
        lambda p: {"changed": None},
        ZEROED,
    ),
    Change("change key", set_at("table", "key", to=["n"]), True, lambda p: {"changed": None}, rows(over_derived=LARGE)),
    Change("nothing", lambda p, given: None, False, lambda p: {}),
    Change(
        "change upstream",
        lambda p, given: given[p.over_derived].update(upstreams=[p.event]),
        True,
        lambda p: {"changed": None},
        rows(over_derived={}),
    ),
    Change("change kind", kind_of_derived, True, lambda p: {"changed": None}, rows(over_derived={})),
]


@pytest.fixture
def pipeline(api: Api) -> Pipeline:
    """A pipeline with three events."""
    made = Pipeline(api)
    assert made.register().status_code == 200
    made.push(*({"user": "u", "amount": float(n), "n": n} for n in (1, 2, 3)))
    assert (made.row(made.table), made.row(made.over_derived)) == (USERS, LARGE)
    return made


def told(change: Change, pipeline: Pipeline, answer: Payload) -> None:
    """The diff says what the change is."""
    wanted = {"added": [], "removed": [], "changed": [], **change.told(pipeline)}
    for part, value in wanted.items():
        if value is not None:
            assert answer[part] == value, part
        else:
            assert answer[part], part


def unchanged(pipeline: Pipeline, version: int, before: dict[str, Payload]) -> None:
    assert pipeline.version() == version
    assert pipeline.registered() == before
    assert (pipeline.row(pipeline.table), pipeline.row(pipeline.over_derived)) == (USERS, LARGE)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_a_change_is_classified(change: Change, pipeline: Pipeline) -> None:
    version, before, given = pipeline.version(), pipeline.registered(), pipeline.changed()
    change.make(pipeline, given)

    for force in (False, True):
        preview = pipeline.register(given, dry_run=True, force=force)
        assert preview.status_code == 200, preview.text
        needs_force = change.destructive and not force
        assert preview.json()["status"] == ("conflict" if needs_force else "ok")
        assert preview.json()["registry_version"] == version
        assert "error" not in preview.json()
        told(change, pipeline, preview.json())
        unchanged(pipeline, version, before)

    plain = pipeline.register(given)
    if change.destructive:
        assert plain.status_code == 409
        assert plain.json()["status"] == "conflict"
        assert plain.json()["registry_version"] == version
        error = plain.json()["error"]
        assert error["code"] == "registration_conflict"
        assert error["errors"] and all(set(one) == {"code", "path", "message"} for one in error["errors"])
        told(change, pipeline, plain.json())
        unchanged(pipeline, version, before)
        plain = pipeline.register(given, force=True)

    assert plain.status_code == 200, plain.text
    assert plain.json()["status"] == "ok"
    is_new = change.name != "nothing"
    assert plain.json()["registry_version"] == version + is_new
    told(change, pipeline, plain.json())
    assert {name: plain.json()[name] for name in ("added", "removed", "changed")} == {
        name: preview.json()[name] for name in ("added", "removed", "changed")
    }
    assert pipeline.version() == version + is_new
    assert (pipeline.registered() != before) == is_new
    after = {pipeline.table: USERS, pipeline.over_derived: LARGE, **change.rows(pipeline)}
    if change.name == "change key":
        del after[pipeline.table]
        assert pipeline.row(pipeline.table, 1) == {}
    assert {table: pipeline.row(table) for table in after} == after

    again = pipeline.register(given)
    if change.name == CASCADES:
        assert (again.status_code, again.json()["error"]["code"]) == (400, "missing_upstream")
    else:
        assert (again.status_code, again.json()["registry_version"]) == (200, version + is_new)
        assert not any(again.json()[part] for part in ("added", "removed", "changed"))


@pytest.mark.parametrize("change", [one for one in CHANGES if one.rows is not GONE], ids=lambda change: change.name)
def test_what_was_reborn_can_be_backfilled(change: Change, pipeline: Pipeline) -> None:
    given = pipeline.changed()
    change.make(pipeline, given)
    answer = pipeline.register(given, force=True, backfill=True)
    assert answer.status_code == 200, answer.text
    effects = answer.json()["plan"]["features"]
    broken = any(one["change"] == "break" for one in answer.json()["plan"]["streams"])
    for one in effects:
        if one["state"] != "cleared":
            assert (one["born"], one["seq"]) == ("first_retained", 3 if broken else 0)
