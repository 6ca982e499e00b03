"""Every kind of change, one by one."""

from __future__ import annotations

from server.changes import (
    CASCADES,
    EVERYTHING,
    GONE,
    LARGE,
    OTHER_KEY,
    SUM,
    USERS,
    ZEROED,
    Change,
    add_derivation,
    add_event,
    add_table,
    changed,
    changes,
    drop,
    feature,
    kind_of_derived,
    kind_of_table,
    remove_derivation,
    remove_event,
    remove_whole,
    rename_event,
    rename_field,
    replace_whole,
    rows,
    set_at,
    steps,
)

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
        "remove field and the feature over it",
        remove_whole,
        True,
        changes(event={"removed_fields": ["n"]}, table={"removed_features": ["whole"]}),
        rows(table={"count": 3, "total": 6.0}),
    ),
    Change(
        "remove field and take another for the feature over it",
        replace_whole,
        True,
        changes(
            event={"removed_fields": ["n"]},
            table={"changed_features": [feature("whole", {"field": "n"}, {"field": "amount"})]},
        ),
        rows(table={**USERS, "whole": None}),
    ),
    Change(
        OTHER_KEY,
        set_at("event", "schema", "user", to="i64"),
        True,
        changes(
            event={"changed_fields": [{"name": "user", "from": "str", "to": "i64"}]},
            over_derived={"zeroed_features": ["large"]},
            table={"zeroed_features": ["count", "total", "whole"]},
        ),
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
        changes(
            event={"renamed_fields": [{"from": "amount", "to": "value"}]},
            derived={"ops": {"from": steps("(amount > 1.0)"), "to": steps("(value > 1.0)")}},
            over_derived={"zeroed_features": ["large"]},
            table={"changed_features": [feature("total", SUM, {**SUM, "field": "value"})]},
        ),
        rows(table={**USERS, "total": None}, over_derived={}),
    ),
    Change(
        "field no longer required",
        set_at("event", "schema", "n", to={"type": "i64", "required": False}),
        False,
        changed(
            "event",
            changed_fields=[
                {"name": "n", "from": {"type": "i64", "required": True}, "to": {"type": "i64", "required": False}}
            ],
        ),
    ),
    Change(
        "field now required",
        set_at("event", "schema", "note", to="str"),
        True,
        changed(
            "event",
            changed_fields=[
                {"name": "note", "from": {"type": "str", "required": False}, "to": {"type": "str", "required": True}}
            ],
        ),
    ),
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
        lambda p: {
            "added": [f"Other{p.event}"],
            "removed": [p.event],
            **changes(
                derived={"upstream": {"from": p.event, "to": f"Other{p.event}"}},
                over_derived={"zeroed_features": ["large"]},
                table={
                    "upstream": {"from": p.event, "to": f"Other{p.event}"},
                    "zeroed_features": ["count", "total", "whole"],
                },
            )(p),
        },
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
        set_at("derived", "ops", to=steps("(amount > 2.0)")),
        True,
        changes(
            derived={"ops": {"from": steps("(amount > 1.0)"), "to": steps("(amount > 2.0)")}},
            over_derived={"zeroed_features": ["large"]},
        ),
        rows(over_derived={}),
    ),
    Change(
        "add a step",
        set_at("derived", "ops", to=steps("(amount > 1.0)", "(n > 0)")),
        True,
        changes(
            derived={"ops": {"from": steps("(amount > 1.0)"), "to": steps("(amount > 1.0)", "(n > 0)")}},
            over_derived={"zeroed_features": ["large"]},
        ),
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
            changed_features=[feature("total", SUM, SUM, op="mean")],
        ),
        ZEROED,
    ),
    Change(
        "change window",
        set_at("table", "agg", "total", "params", "window", to="5m"),
        True,
        changed(
            "table",
            changed_features=[feature("total", SUM, {**SUM, "window": "5m"})],
        ),
        ZEROED,
    ),
    Change(
        "change parameter",
        set_at("table", "agg", "total", "params", "where", to="(n > 1)"),
        True,
        changed(
            "table",
            changed_features=[feature("total", SUM, {**SUM, "where": "(n > 1)"})],
        ),
        ZEROED,
    ),
    Change(
        "change key",
        set_at("table", "key", to=["n"]),
        True,
        changed("table", key={"from": ["user"], "to": ["n"]}, zeroed_features=["count", "total", "whole"]),
        rows(over_derived=LARGE),
    ),
    Change("nothing", lambda p, given: None, False, lambda p: {}),
    Change(
        "change upstream",
        lambda p, given: given[p.over_derived].update(upstreams=[p.event]),
        True,
        lambda p: {
            "changed": [
                {
                    "name": p.over_derived,
                    "upstream": {"from": p.derived, "to": p.event},
                    "zeroed_features": ["large"],
                }
            ]
        },
        rows(over_derived={}),
    ),
    Change(
        "change kind",
        kind_of_derived,
        True,
        changes(
            derived={"kind": {"from": "derivation", "to": "event"}},
            over_derived={"zeroed_features": ["large"]},
        ),
        rows(over_derived={}),
    ),
    Change(
        "table becomes derivation",
        kind_of_table,
        True,
        changed("table", kind={"from": "table", "to": "derivation"}),
        rows(table=None),
    ),
    Change(
        "rename table",
        lambda p, given: given[p.table].update(name=f"Other{p.table}"),
        True,
        lambda p: {"added": [f"Other{p.table}"], "removed": [p.table]},
        lambda p: {p.table: None, f"Other{p.table}": USERS},
    ),
    Change(
        "set cold_after",
        set_at("event", "cold_after", to="1h"),
        False,
        changed("event", cold_after={"from": None, "to": "1h"}),
        before=drop("event", "cold_after"),
    ),
    Change(
        "set keep_events_for",
        set_at("event", "keep_events_for", to="3650d"),
        True,
        changed("event", keep_events_for={"from": "forever", "to": "3650d"}),
        before=drop("event", "keep_events_for"),
    ),
    Change(
        "set dedupe_key",
        set_at("event", "dedupe_key", to="id"),
        False,
        changed("event", dedupe_key={"from": None, "to": "id"}),
        before=drop("event", "dedupe_key"),
    ),
]
