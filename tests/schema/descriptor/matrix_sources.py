"""Rows 1 to 17: what is added, and what changes about sources."""

from __future__ import annotations

from schema.descriptor.matrix import (
    ALL_ZEROED,
    AMOUNT_ZEROED,
    BIG,
    FEATURES,
    KEPT,
    OF_AMOUNT,
    OFFSET,
    OPTIONAL,
    ZEROED,
    E,
    Row,
    U,
    features,
    fields,
)
from schema.descriptor.payloads import derivation, event, op, table

ROWS = [
    Row("1 add event", [E, U], [E, U, event("Login")], False, added=["Login"]),
    Row(
        "2 add table",
        [E, U],
        [E, U, table("Other")],
        False,
        added=["Other"],
        lives={"User": KEPT, "Other": {"n_events": "additive", "total": "additive"}},
    ),
    Row("3 add derivation", [E, U], [E, U, BIG], False, added=["Big"]),
    Row(
        "4 add feature",
        [E, U],
        [E, features(zz=op("max", field="n"), aa=op("count"))],
        False,
        [{"name": "User", "added_features": ["aa", "zz"]}],
        {"User": {**KEPT, "aa": "additive", "zz": "additive"}},
    ),
    Row(
        "5 add optional field",
        [E, U],
        [fields(note=OPTIONAL), U],
        False,
        [{"name": "Txn", "added_fields": [{"name": "note", "type": "str", "required": False}]}],
    ),
    Row(
        "5 add optional field with default",
        [E, U],
        [fields(note={**OPTIONAL, "default": "-"}), U],
        False,
        [{"name": "Txn", "added_fields": [{"name": "note", "type": "str", "required": False, "default": "-"}]}],
    ),
    Row(
        "6 add required field with default",
        [E, U],
        [fields(note={"type": "i64", "default": 0}), U],
        False,
        [{"name": "Txn", "added_fields": [{"name": "note", "type": "i64", "required": True, "default": 0}]}],
    ),
    Row(
        "7 add required field without default",
        [E, U],
        [fields(note="str"), U],
        True,
        [{"name": "Txn", "added_fields": [{"name": "note", "type": "str", "required": True, "default": None}]}],
    ),
    Row(
        "8 remove field nobody looks at",
        [E, U],
        [fields(ok=None), U],
        True,
        [{"name": "Txn", "removed_fields": ["ok"]}],
    ),
    Row(
        "8 remove field",
        [E, U],
        [fields(n=None), features(mean_n=None)],
        True,
        [{"name": "Txn", "removed_fields": ["n"]}, {"name": "User", "removed_features": ["mean_n"]}],
        {"User": {name: "kept" for name in FEATURES if name != "mean_n"}},
        dropped={"User": ["mean_n"]},
    ),
    Row(
        "9 widen",
        [E, U],
        [fields(n="f64"), U],
        False,
        [{"name": "Txn", "changed_fields": [{"name": "n", "from": "i64", "to": "f64"}]}],
    ),
    Row(
        "10 narrow",
        [E, U],
        [fields(amount="i64"), U],
        True,
        [{"name": "Txn", "changed_fields": [{"name": "amount", "from": "f64", "to": "i64"}]}, AMOUNT_ZEROED],
        {"User": OF_AMOUNT},
    ),
    Row(
        "10 incompatible type of the key",
        [E, U],
        [fields(user="i64"), U],
        True,
        [{"name": "Txn", "changed_fields": [{"name": "user", "from": "str", "to": "i64"}]}, ALL_ZEROED],
        {"User": ZEROED},
    ),
    Row(
        "11 rename field",
        [E, U],
        [
            fields(amount=None, price="f64"),
            features(total=op("sum", field="price"), large=op("count", where="price > 100")),
        ],
        True,
        [
            {"name": "Txn", "renamed_fields": [{"from": "amount", "to": "price"}]},
            {
                "name": "User",
                "changed_features": [
                    {
                        "name": "large",
                        "from": op("count", where="(amount > 100)"),
                        "to": op("count", where="(price > 100)"),
                    },
                    {"name": "total", "from": op("sum", field="amount"), "to": op("sum", field="price")},
                ],
            },
        ],
        {"User": OF_AMOUNT},
    ),
    Row(
        "11 rename field by a derivation instead",
        [E, U],
        [E, U, derivation("Priced", "Txn", {"op": "rename", "mapping": {"amount": "price"}})],
        False,
        added=["Priced"],
    ),
    Row(
        "12 loosen",
        [E, U],
        [fields(ok={"type": "bool", "required": False}), U],
        False,
        [
            {
                "name": "Txn",
                "changed_fields": [
                    {
                        "name": "ok",
                        "from": {"type": "bool", "required": True},
                        "to": {"type": "bool", "required": False},
                    }
                ],
            }
        ],
    ),
    Row(
        "12 tighten",
        [fields(note=OPTIONAL), U],
        [fields(note="str"), U],
        True,
        [
            {
                "name": "Txn",
                "changed_fields": [
                    {
                        "name": "note",
                        "from": {"type": "str", "required": False},
                        "to": {"type": "str", "required": True},
                    }
                ],
            }
        ],
    ),
    Row(
        "12 tighten with a default, which fills in no null",
        [fields(note=OPTIONAL), U],
        [fields(note={"type": "str", "default": ""}), U],
        True,
        [
            {
                "name": "Txn",
                "changed_fields": [
                    {
                        "name": "note",
                        "from": {"type": "str", "required": False},
                        "to": {"type": "str", "required": True, "default": ""},
                    }
                ],
            }
        ],
    ),
    Row(
        "12 take a default away",
        [fields(note={"type": "str", "default": ""}), U],
        [fields(note="str"), U],
        True,
        [
            {
                "name": "Txn",
                "changed_fields": [
                    {
                        "name": "note",
                        "from": {"type": "str", "required": True, "default": ""},
                        "to": {"type": "str", "required": True},
                    }
                ],
            }
        ],
    ),
    Row(
        "12 give a default",
        [E, U],
        [fields(amount={"type": "f64", "default": 1}), U],
        False,
        [
            {
                "name": "Txn",
                "changed_fields": [
                    {
                        "name": "amount",
                        "from": {"type": "f64", "required": True},
                        "to": {"type": "f64", "required": True, "default": 1.0},
                    }
                ],
            }
        ],
    ),
    Row(
        "13 raise keep_events_for",
        [event(keep_events_for="7d"), U],
        [event(keep_events_for="30d"), U],
        False,
        [{"name": "Txn", "keep_events_for": {"from": "7d", "to": "30d"}}],
    ),
    Row(
        "13 keep events for ever",
        [event(keep_events_for="7d"), U],
        [event(), U],
        False,
        [{"name": "Txn", "keep_events_for": {"from": "7d", "to": "forever"}}],
    ),
    Row(
        "14 lower keep_events_for",
        [event(keep_events_for="30d"), U],
        [event(keep_events_for="7d"), U],
        True,
        [{"name": "Txn", "keep_events_for": OFFSET}],
    ),
    Row(
        "14 keep events no longer for ever",
        [event(), U],
        [event(keep_events_for="3650d"), U],
        True,
        [{"name": "Txn", "keep_events_for": {"from": "forever", "to": "3650d"}}],
    ),
    Row(
        "15 set cold_after",
        [E, U],
        [event(cold_after="30d"), U],
        False,
        [{"name": "Txn", "cold_after": {"from": None, "to": "30d"}}],
    ),
    Row(
        "16 lower cold_after",
        [event(cold_after="30d"), U],
        [event(cold_after="7d"), U],
        True,
        [{"name": "Txn", "cold_after": OFFSET}],
    ),
    Row(
        "16 raise cold_after",
        [event(cold_after="7d"), U],
        [event(cold_after="30d"), U],
        False,
        [{"name": "Txn", "cold_after": {"from": "7d", "to": "30d"}}],
    ),
    Row(
        "16 remove cold_after",
        [event(cold_after="7d"), U],
        [E, U],
        False,
        [{"name": "Txn", "cold_after": {"from": "7d", "to": None}}],
    ),
    Row(
        "17 set dedupe_key",
        [E, U],
        [event(dedupe_key="user"), U],
        False,
        [{"name": "Txn", "dedupe_key": {"from": None, "to": "user"}}],
    ),
    Row(
        "17 change dedupe_key",
        [event(dedupe_key="user"), U],
        [event(dedupe_key="n"), U],
        True,
        [{"name": "Txn", "dedupe_key": {"from": "user", "to": "n"}}],
    ),
    Row(
        "17 remove dedupe_key",
        [event(dedupe_key="user"), U],
        [E, U],
        True,
        [{"name": "Txn", "dedupe_key": {"from": "user", "to": None}}],
    ),
    Row(
        "17 change dedupe_window",
        [event(dedupe_key="user"), U],
        [event(dedupe_key="user", dedupe_window="2h"), U],
        True,
        [{"name": "Txn", "dedupe_window": {"from": "1d", "to": "2h"}}],
    ),
]
