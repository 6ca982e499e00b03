"""Our features beside those of the beava server, for what both mean by the same words.

Its clock is its own, but it tells it: ``last_seen`` after a push is the time of that event, ``first_seen`` and ``age``
in one answer are the time of the answer. So our reducer folds the same events at the same milliseconds, and must
answer the same, at the edges of panes too. What we mean otherwise, on purpose, is left out or translated below;
docs/features.md lists it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from conftest import ServerProcess
from headrace.reduce.features.table import KeyState, TableReducer
from headrace.schema.descriptor.nodes import FeatureVersion
from headrace.schema.descriptor.registration import Registration, read_registration
from headrace.schema.descriptor.validate import resolve_table
from support import beava_server as beava
from support.beava_server import Beava

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90)]

USERS = ("ann", "bob", "cleo")
EVENTS = 120
#: Panes of 10 ms: they come and go while the test runs.
WINDOW = "640ms"
#: Where the peer computes over all time, whatever window it is told.
ALWAYS = "1h"
WHERE = "(ok == true)"
FIELDS = {"user": "str", "amount": "f64", "number": "i64", "kind": "str", "ok": "bool", "lat": "f64", "lon": "f64"}
PLACE = {"lat": "lat", "lon": "lon"}

Feature = tuple[str, dict[str, Any]]

#: By which the peer tells its clock, and what it has seen.
TIMES: dict[str, Feature] = {
    "first_at": ("first_seen", {}),
    "last_at": ("last_seen", {}),
    "aged": ("age", {}),
    "events": ("count", {}),
}

RATIO: Feature = ("ratio", {"where": "(amount > 5.0)"})
#: Over all time, and in a window.
IN_WINDOWS: list[Feature] = [
    ("count", {}),
    *((op, {"field": field}) for op in ("sum", "mean", "min", "max", "var", "std") for field in ("amount", "number")),
    *((op, {"field": "extra"}) for op in ("sum", "mean", "min", "max")),
    *(("n_unique", {"field": field}) for field in ("amount", "number", "kind", "extra")),
    *(("quantile", {"field": "amount", "q": q}) for q in (0.05, 0.5, 0.99)),
    *(("top_k", {"field": field, "k": 3}) for field in ("number", "kind")),
]
#: Over all time alone.
LIFETIME: list[Feature] = [
    *((op, {"field": field}) for op in ("first", "last") for field in ("amount", "kind", "extra")),
    *((op, {"field": "kind", "n": 3}) for op in ("first_n", "last_n", "lag", "most_recent_n")),
    ("delta_from_prev", {"field": "amount"}),
    ("histogram", {"field": "amount", "buckets": [2, 5.5, 8]}),
    ("hour_of_day_histogram", {}),
    ("dow_hour_histogram", {}),
    ("event_type_mix", {"field": "kind"}),
    *((op, {}) for op in ("first_seen", "last_seen", "age", "has_seen", "time_since")),
    *((op, {}) for op in ("streak", "max_streak", "negative_streak")),
    ("time_since_last_n", {"n": 3}),
    ("first_seen_in_window", {"window": "200ms"}),
    *((op, {"field": "amount", "half_life": life}) for op in ("ewma", "ewvar", "ew_zscore") for life in ("50ms", "1h")),
    ("value_change_count", {"field": "kind", "window": ALWAYS}),
    ("inter_arrival_stats", {"window": ALWAYS}),
    ("z_score", {"field": "amount", "baseline_window": ALWAYS}),
    ("seasonal_deviation", {"field": "amount"}),
    *((op, PLACE) for op in ("geo_distance", "geo_spread", "distance_from_home")),
]
#: What the peer does not take a ``where`` for, or means otherwise where nothing matches.
UNCONDITIONAL: list[Feature] = [
    ("entropy", {"field": "kind"}),
    *(("decayed_sum", {"field": "amount", "half_life": life}) for life in ("50ms", "1h")),
    *(("decayed_count", {"half_life": life}) for life in ("50ms", "1h")),
    ("twa", {"field": "amount", "window": ALWAYS}),
]
#: What the peer reads as of the last event, and we as of the moment of the answer.
AT_THE_LAST_EVENT = ("decayed_sum", "decayed_count", "twa")

#: Columns made by expressions, each of which the peer computes as we do.
EXPRESSIONS = {
    "sums": "(amount + (number * 2))",
    "shares": "(amount / 4.0)",
    "compared": "((amount >= 5.0) and (kind != 'a'))",
    "either": "((number < 2) or (not ok))",
    "absent": "isnull(extra)",
    "unknown": "((extra > 3) or ok)",
    "both": "((extra > 3) and ok)",
    "added": "(extra + 1)",
    "text": "cast(number, str)",
    "whole": "cast(amount, int)",
    "asfloat": "cast(number, float)",
    "truth": "cast(number, bool)",
}


@pytest.fixture
def peer(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[Beava]:
    """The server of the wheel, fresh."""
    with beava.serving(beava.binary(pytestconfig.cache.mkdir("beava")), tmp_path) as serving:
        yield serving


class Mirror:
    """Pushes events to the peer, and folds them with our reducer at the times that the peer gave them."""

    def __init__(self, peer: Beava, nodes: list[dict[str, Any]]) -> None:
        self._peer = peer
        self._reducer = reducer(nodes)
        self._states: dict[str, KeyState] = {}
        self._pushed = 0
        peer.register(nodes)

    def push(self, event: dict[str, Any]) -> bool:
        """Whether the table has a row of it."""
        user = event["user"]
        before = self._count(user)
        self._peer.push("Txn", event)
        placed = self._reducer.key_and_row(event)
        assert self._count(user) - before == (placed is not None), event
        if placed is None:
            return False
        at_ms = self._peer.get("ByUser", user, ["last_at"])["last_at"]
        self._states[user] = self._reducer.fold(self._states.get(user), at_ms, self._pushed, placed[1])
        self._pushed += 1
        return True

    def _count(self, user: str) -> int:
        return int(self._peer.get("ByUser", user).get("events", 0))

    def rows(self, user: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The peer's row, ours at the same moment, and ours as of the last event."""
        theirs, state = self._peer.get("ByUser", user), self._states[user]
        now_ms = theirs["first_at"] + theirs["aged"]
        return theirs, self._reducer.finish(state, now_ms), self._reducer.finish(state, state.last_ms)


def test_reducers_answer_what_beava_answers_at_the_same_millisecond(peer: Beava) -> None:
    agg = declared()
    mirror, chance = Mirror(peer, pipeline(agg)), random.Random(6)
    wrong: list[str] = []
    for number in range(EVENTS):
        event = transaction(chance)
        mirror.push(event)
        if number % 2:
            wrong += differences(agg, *mirror.rows(event["user"]))
        time.sleep(chance.choice((0, 0, 0.002, 0.009, 0.02)))
    for pause in (0, 0.2, 0.5):
        time.sleep(pause)
        for user in USERS:
            wrong += differences(agg, *mirror.rows(user))
    assert not wrong, "\n".join(sorted(wrong)[:40])


def test_steps_leave_the_rows_that_they_leave_to_beava(peer: Beava) -> None:
    ops: list[dict[str, Any]] = [
        {"op": "filter", "expr": "((kind != 'd') and (amount < 9.0))"},
        {"op": "rename", "mapping": {"number": "many", "kind": "sort"}},
        {"op": "with_columns", "exprs": {"most": "(many * 10)", "amount": "(amount + 1.0)"}},
        {"op": "cast", "type_map": {"many": "str", "most": "float", "ok": "int"}},
        {"op": "fillna", "defaults": {"extra": 7}},
        {"op": "drop", "fields": ["lat"]},
        {"op": "select", "fields": ["user", "sort", "many", "most", "amount", "ok", "extra"]},
    ]
    fields = ("sort", "many", "most", "amount", "ok", "extra")
    agg: dict[str, Feature] = {f"last_{field}": ("last_n", {"field": field, "n": 5}) for field in fields}
    agg |= {f"sum_{field}": ("sum", {"field": field}) for field in ("most", "amount", "ok", "extra")}
    mirror, chance = Mirror(peer, pipeline({**agg, **TIMES}, ops)), random.Random(9)
    wrong: list[str] = []
    for _ in range(EVENTS // 2):
        # Its fillna leaves alone what is left out.
        event = {"extra": None, **transaction(chance)}
        if mirror.push(event):
            wrong += differences(agg, *mirror.rows(event["user"]))
    assert not wrong, "\n".join(sorted(wrong)[:40])


def test_expressions_mean_what_they_mean_to_beava(peer: Beava) -> None:
    agg = {f"last_{name}": ("last", {"field": name}) for name in EXPRESSIONS}
    agg |= {f"nulls_{name}": ("count", {"where": f"isnull({name})"}) for name in EXPRESSIONS}
    agg |= {"true_" + name: ("count", {"where": name}) for name in ("compared", "either", "unknown", "both")}
    made = pipeline({**agg, **TIMES}, [{"op": "with_columns", "exprs": EXPRESSIONS}])
    mirror, chance = Mirror(peer, made), random.Random(7)
    wrong: list[str] = []
    for _ in range(EVENTS // 2):
        event = transaction(chance)
        mirror.push(event)
        wrong += differences(agg, *mirror.rows(event["user"]))
    assert not wrong, "\n".join(sorted(wrong)[:40])


def test_the_server_answers_what_beava_answers(peer: Beava, server: ServerProcess) -> None:
    """The same payload, the same pushes, the same questions over HTTP; all that does not depend on the clock."""
    agg = {name: feature for name, feature in declared("1h").items() if feature[0] not in _CLOCKED}
    nodes, chance = pipeline(agg), random.Random(8)
    peer.register(nodes)
    with httpx2.Client(base_url=f"{server.url}/v1", timeout=30) as client:
        registered = client.post("/register", json={"nodes": nodes})
        assert registered.status_code == 200, registered.text
        for _ in range(EVENTS):
            event = transaction(chance)
            peer.push("Txn", event)
            pushed = client.post("/push/Txn", json=event)
            assert pushed.status_code == 200, pushed.text
        wrong: list[str] = []
        for user in USERS:
            answer = client.post("/get", json={"table": "ByUser", "key": user})
            assert answer.status_code == 200, answer.text
            assert answer.headers["Headrace-Coverage"] == "complete"
            wrong += differences(agg, peer.get("ByUser", user), answer.json(), answer.json())
    assert not wrong, "\n".join(sorted(wrong)[:40])


#: Operators whose answer depends on when events came and when it is asked for.
_CLOCKED = {
    *("first_seen", "last_seen", "age", "time_since", "time_since_last_n", "first_seen_in_window"),
    *("ewma", "ewvar", "ew_zscore", "decayed_sum", "decayed_count", "twa", "inter_arrival_stats"),
    *("hour_of_day_histogram", "dow_hour_histogram", "seasonal_deviation"),
}


def declared(window: str = WINDOW) -> dict[str, Feature]:
    """Every feature to compare, by a name of its own."""
    wanted = [(op, {**params, **within}) for op, params in IN_WINDOWS for within in ({}, {"window": window})]
    wanted += LIFETIME
    wanted += [(op, {**params, "where": WHERE}) for op, params in wanted if op not in ("first", "last")]
    wanted += [*UNCONDITIONAL, RATIO, (RATIO[0], {**RATIO[1], "window": window})]
    return {**{f"{op}_{number}": (op, params) for number, (op, params) in enumerate(wanted)}, **TIMES}


def pipeline(agg: dict[str, Feature], ops: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """An event and a table by user, in a shape that both servers take."""
    event = {"fields": {**FIELDS, "extra": "i64"}, "optional_fields": ["extra"]}
    features = {name: {"op": op, "params": params} for name, (op, params) in agg.items()}
    grouped = {"op": "group_by", "keys": ["user"], "agg": features}
    table = {"output_kind": "table", "table_primary_key": ["user"], "upstreams": ["Txn"]}
    return [
        {"kind": "event", "name": "Txn", "schema": event},
        {"kind": "derivation", "name": "ByUser", **table, "ops": [*(ops or []), grouped]},
    ]


def reducer(nodes: list[dict[str, Any]]) -> TableReducer:
    """Our reducer of the table, every feature born with the first event."""
    registration = read_registration({"nodes": nodes})
    assert isinstance(registration, Registration), registration
    resolved = resolve_table(registration.nodes, "ByUser")
    return TableReducer(resolved, {name: FeatureVersion(name, 0) for name in resolved.table.features})


def transaction(chance: random.Random) -> dict[str, Any]:
    """An event by chance."""
    event = {
        "user": chance.choice(USERS),
        "amount": chance.choice((chance.randrange(20) / 2, chance.random() * 10)),
        "number": chance.randrange(5),
        "kind": chance.choice("abcdef"),
        "ok": chance.random() < 0.6,
        "lat": 50 + chance.random() / 100,
        "lon": 6 + chance.random() / 100,
    }
    return {**event, "extra": chance.randrange(6)} if chance.random() < 0.5 else event


def differences(
    agg: dict[str, Feature], theirs: dict[str, Any], ours: dict[str, Any], at_last: dict[str, Any]
) -> list[str]:
    """Where the two rows differ, in words."""
    assert theirs.keys() == ours.keys()
    counts = {(op, *_scope(params)): _counted(op, ours[name], ours) for name, (op, params) in agg.items()}
    found = []
    for name, (op, params) in agg.items():
        mine = (at_last if op in AT_THE_LAST_EVENT else ours)[name]
        counter = "hour_of_day_histogram" if op == "seasonal_deviation" else "count"
        expected = translated(op, theirs[name], counts.get((counter, *_scope(params)), 0))
        if not agree(expected, mine):
            found.append(f"{op} {params}: beava {theirs[name]!r}, ours {mine!r}")
    return found


def translated(op: str, value: Any, count: int) -> Any:
    """What the peer answers in our words: variances of all values, and the newest of several values first."""
    if op == "most_recent_n":
        return value[::-1]
    if op in ("z_score", "seasonal_deviation"):
        return value if value is None else value * math.sqrt(count / (count - 1))
    if op not in ("var", "std") or count == 0:
        return value
    share = (count - 1) / count
    return (value or 0.0) * (share if op == "var" else math.sqrt(share))


def _counted(op: str, value: Any, row: dict[str, Any]) -> int:
    """How many events a feature tells of: in all, or of the hour of the last one."""
    if op == "hour_of_day_histogram":
        return int(value[row["last_at"] // 3_600_000 % 24])
    return int(value) if op == "count" else 0


def agree(theirs: Any, ours: Any) -> bool:
    """Whether two answers are the same, numbers but for rounding."""
    if isinstance(theirs, list) and isinstance(ours, list):
        return len(theirs) == len(ours) and all(map(agree, theirs, ours))
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return theirs.keys() == ours.keys() and all(agree(theirs[name], ours[name]) for name in theirs)
    if isinstance(theirs, float) and isinstance(ours, float):
        return math.isclose(theirs, ours, rel_tol=1e-9, abs_tol=1e-9)
    return type(theirs) is type(ours) and bool(theirs == ours)


def _scope(params: dict[str, Any]) -> tuple[Any, Any]:
    return params.get("where"), params.get("window")
