"""Rows of feature tables have declared types, and frames of them, now and in the past, equal what HTTP answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace import testing
from headrace.client import features
from headrace.client.declared_types import type_values
from headrace.errors import KeyShapeMismatch, UnknownTable

AT = datetime(2026, 1, 1, 0, 30, tzinfo=UTC)
BIG = 2**60 + 1


@hr.event
class Seen:
    user: str
    n: int
    at: datetime | None
    token: bytes | None
    amount: float | None
    ok: bool | None


@hr.table(key=["user", "n"])
def Visits(seen: Seen):  # type: ignore[no-untyped-def]
    return seen.agg(
        count=hr.count(),
        last_at=hr.last("at"),
        tokens=hr.last_n("token", n=3),
        total=hr.sum("amount"),
        top=hr.top_k("at", k=2),
        buckets=hr.histogram("amount", buckets=[1, 2]),
        shares=hr.event_type_mix("user"),
        most=hr.max("n"),
        ok=hr.last("ok"),
    )


@hr.table(key="user")
def Users(seen: Seen):  # type: ignore[no-untyped-def]
    return seen.agg(n=hr.count(), first_at=hr.first("at"))


@hr.table
def Everything(seen: Seen):  # type: ignore[no-untyped-def]
    return seen.agg(n=hr.count())


@pytest.fixture(scope="module")
def app() -> Iterator[testing.VirtualApp]:
    with testing.app() as running:
        running.register(Visits, Users, Everything)
        running.push(Seen, {"user": "ada", "n": BIG, "at": AT, "token": b"\xff", "amount": 1.5, "ok": True})
        running.push(Seen, {"user": "bob", "n": 1})
        running.clock.advance("1h")
        yield running


def test_values_have_the_types_that_are_declared(app: testing.VirtualApp) -> None:
    row = app.get(Visits, ("ada", BIG))
    assert row["last_at"] == AT
    assert row["tokens"] == [b"\xff"]
    assert row["top"] == [{"value": AT, "count": 1}]
    assert row.raw["last_at"] == "2026-01-01T00:30:00Z"
    assert row.raw["tokens"] == ["/w=="]
    assert app.get(Visits, ("ada", BIG), as_of=AT)["last_at"] == AT
    assert app.get("Visits", ("ada", BIG), features=["last_at"], explain=True) == {"last_at": AT}
    assert app.get(Users, "bob") == {"n": 1, "first_at": None}


@hr.event
class Note:
    user: str
    at: datetime
    text: str


def test_types_follow_the_registry() -> None:
    def notes(field: str) -> hr.Table:
        @hr.table(key="user")
        def Notes(note: Note):  # type: ignore[no-untyped-def]
            return note.agg(newest=hr.last(field))

        return Notes

    with testing.app() as app, hr.App(app.client.settings.url) as other:
        app.register(notes("at"))
        app.push(Note, {"user": "ada", "at": AT, "text": "2026-01-01T00:00:00Z"})
        assert other.get("Notes", "ada") == {"newest": AT}
        app.register(notes("text"), force=True, backfill=True)
        assert other.get("Notes", "ada") == {"newest": "2026-01-01T00:00:00Z"}


def test_rows_of_keys_are_a_table_with_declared_types(app: testing.VirtualApp) -> None:
    rows = app.batch_get([(Visits, ("ada", np.int64(BIG))), (Visits, ("nobody", 2))])
    table = rows.to_arrow()
    assert table.schema.field("n").type == table.schema.field("most").type == pa.int64()
    assert table.schema.field("last_at").type == pa.timestamp("us", "UTC")
    assert table.schema.field("tokens").type == pa.list_(pa.binary())
    assert table.column("n").to_pylist() == [BIG, 2]
    assert table.column("most").to_pylist() == [BIG, None]
    frame = rows.to_pandas()
    assert frame["most"].dtype == pd.Int64Dtype()
    assert frame["most"][0] == BIG
    assert frame["buckets"][0] == {"<1": 0, "1-2": 1, ">=2": 0}
    assert rows.to_polars()["most"].to_list() == [BIG, None]
    none = app.batch_get([(Visits, ("nobody", 2), ["ok", "most"])]).to_arrow()
    assert none.schema.names == ["user", "n", "most", "ok"]
    assert none.schema.types == [pa.string(), pa.int64(), pa.int64(), pa.bool_()]
    assert app.batch_get([(Everything, ())]).to_arrow().to_pylist() == [{"n": 2}]


def test_rows_of_several_tables_are_no_table(app: testing.VirtualApp) -> None:
    rows = app.batch_get([(Users, "ada"), (Everything, ())])
    assert rows == [{"n": 1, "first_at": AT}, {"n": 2}]
    with pytest.raises(ValueError, match="are of 2"):
        rows.to_arrow()


QUESTIONS = {
    "user": ["ada", "bob", "ada", "nobody"],
    "n": [BIG, 1, BIG, 7],
    "when": [
        datetime(2026, 1, 1, 0, 45),
        datetime(2026, 1, 1, 0, 45),
        datetime(2025, 12, 31),
        datetime(2026, 1, 1, 0, 45),
    ],
    "ok": [1, 0, None, 1],
}
ANSWERS = [1, 1, None, None]


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow"])
def test_a_frame_asks_for_the_past_and_is_answered_by_one(app: testing.VirtualApp, library: str) -> None:
    table = pa.table(QUESTIONS)
    frame: Any = {"pandas": table.to_pandas, "polars": lambda: pl.from_arrow(table), "arrow": lambda: table}[library]()
    history = app.history(Visits, frame, ["count", "last_at", "ok"])
    assert [row.get("count") for row in history] == ANSWERS
    assert [row.key for row in history] == [list(key) for key in zip(QUESTIONS["user"], QUESTIONS["n"], strict=True)]
    assert next(iter(history)).at == "2026-01-01T00:45:00Z"
    answer = history.to_arrow()
    assert answer.column_names == ["user", "n", "when", "ok", "count", "last_at", "Visits.ok"]
    assert answer.column("n").to_pylist() == QUESTIONS["n"]
    assert answer.column("count").to_pylist() == ANSWERS
    assert answer.column("last_at").to_pylist() == [AT, None, None, None]
    assert answer.schema.field("count").type == pa.int64()
    pandas_answer = history.to_pandas()
    assert list(pandas_answer["count"]) == [1, 1, pd.NA, pd.NA]
    assert pandas_answer["count"].dtype == pd.Int64Dtype()
    assert history.to_polars()["count"].to_list() == ANSWERS


def test_a_training_set_has_features_of_several_tables(app: testing.VirtualApp) -> None:
    frame = pa.table(QUESTIONS)
    made = app.training_set(frame, {Visits: ["count"], "Users": ["n", "first_at"]})
    users = app.history(Users, frame).to_arrow()
    table = made.to_arrow()
    assert table.column_names == ["user", "n", "when", "ok", "count", "Users.n", "first_at"]
    assert table.column("count").to_pylist() == ANSWERS
    assert table.column("Users.n").to_pylist() == users.column("Users.n").to_pylist() == [1, 1, None, None]
    assert made.to_pandas()["Users.n"].dtype == pd.Int64Dtype()
    everything = app.training_set(frame, [Users, Everything], at="when").to_polars()
    assert everything.columns == ["user", "n", "when", "ok", "Users.n", "first_at", "Everything.n"]
    assert everything["Everything.n"].to_list() == [2, 2, None, 2]
    for tables in ([], "Users"):
        with pytest.raises(TypeError, match="tables are a list of tables"):
            app.training_set(frame, tables)
    with pytest.raises(TypeError, match="a frame is a DataFrame"):
        app.training_set([("ada", AT)], [Users])


def test_pairs_ask_for_the_past_too(app: testing.VirtualApp) -> None:
    pairs = [
        ("ada", pd.Timestamp("2026-01-01T00:45Z")),
        ("ada", date(2025, 12, 31)),
        ("bob", np.datetime64("2026-01-02")),
    ]
    history = app.history(Users, pairs)
    assert [(row.key, row.at, row) for row in history] == [
        (*pairs[0], {"n": 1, "first_at": AT}),
        (*pairs[1], {}),
        (*pairs[2], {"n": 1, "first_at": None}),
    ]
    table = history.to_arrow()
    assert table.schema.names == ["user", "at", "n", "first_at"]
    assert table.column("at").to_pylist() == [
        datetime(2026, 1, 1, 0, 45, tzinfo=UTC),
        datetime(2025, 12, 31, tzinfo=UTC),
        datetime(2026, 1, 2, tzinfo=UTC),
    ]
    assert app.history(Users, []).to_arrow().schema.types == [
        pa.string(),
        *[pa.timestamp("us", "UTC"), pa.int64(), pa.timestamp("us", "UTC")],
    ]
    everything = app.history(Everything, [((), AT)]).to_arrow()
    assert everything.to_pylist() == [{"at": AT, "n": 2}]


def test_a_column_of_moments_is_named_or_found(app: testing.VirtualApp) -> None:
    late, early = datetime(2026, 1, 2, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)
    both = pl.DataFrame({"user": ["ada"], "at": [late], "other": [early]})
    assert [len(row) for row in app.history(Users, both)] == [2]
    assert [len(row) for row in app.history(Users, both, at="other")] == [0]
    assert [len(row) for row in app.history(Users, both.rename({"at": "x"}).drop("other"))] == [2]
    with pytest.raises(ValueError, match="say which column has the moments"):
        list(app.history(Users, both.rename({"at": "x"})))


def test_a_frame_may_say_until_when_what_counts_was_appended(app: testing.VirtualApp) -> None:
    late, early = datetime(2026, 1, 2, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)
    frame = pl.DataFrame({"user": ["ada", "ada"], "when": [late, late], "as_known_at": [late, early]})
    history = app.history(Users, frame)
    assert [len(row) for row in history] == [2, 0]
    assert [row.as_known_at for row in history] == ["2026-01-02T00:00:00Z", "2025-01-01T00:00:00Z"]
    assert history.to_arrow().column_names == ["user", "when", "as_known_at", "n", "first_at"]
    common = app.history(Users, frame.drop("as_known_at"), as_known_at=early)
    assert [(len(row), row.as_known_at) for row in common] == [(0, early), (0, early)]
    assert app.training_set(frame, [Users, Everything]).to_polars()["Everything.n"].to_list()[1] is None
    pairs = app.history(Users, [("ada", late), ("ada", late, early)]).to_arrow()
    assert pairs.column("as_known_at").to_pylist() == [None, early]
    assert pairs.column("n").to_pylist() == [1, None]
    assert app.get(Users, "ada", as_of=late, as_known_at=early) == {}
    with pytest.raises(ValueError, match="the frame has a column as_known_at"):
        list(app.history(Users, frame, as_known_at=late))


@pytest.mark.parametrize(
    ("rows", "options", "kind", "reason"),
    [
        (pd.DataFrame({"n": [1], "at": [AT]}), {}, ValueError, "no column 'user': the key of Users is user"),
        (pd.DataFrame({"user": ["a"]}), {"at": "when"}, ValueError, "no column 'when', only user"),
        (
            pd.DataFrame({"user": ["a", None], "at": [AT, AT]}),
            {},
            ValueError,
            "row 1, column 'user': there is no value",
        ),
        (pd.DataFrame({"user": ["a"], "at": [pd.NaT]}), {}, ValueError, "row 0, column 'at': there is no value"),
        (pl.LazyFrame({"user": ["a"]}), {}, TypeError, r"pass frame.collect\(\)"),
        ([("a",)], {}, ValueError, r"row 0 is no \(key, moment\)"),
        ([("a", AT), ("a", 1.5)], {}, TypeError, "row 1 .* 1.5 is no moment"),
        ([("a", AT), (object(), AT)], {}, TypeError, "row 1, field 'key': object cannot be JSON"),
        ([("a", AT)], {"at": "when"}, TypeError, "at names the column of a frame"),
        (pd.DataFrame({"user": [1.5], "at": [AT]}), {}, KeyShapeMismatch, "the key must be an array of user"),
    ],
)
def test_what_is_no_question_is_refused(
    app: testing.VirtualApp, rows: Any, options: Any, kind: type[Exception], reason: str
) -> None:
    with pytest.raises(kind, match=reason):
        list(app.history(Users, rows, **options))


def test_a_table_that_is_not_there_is_named(app: testing.VirtualApp) -> None:
    frame = pd.DataFrame({"user": ["a"], "at": [AT]})
    for rows in (frame, [("a", AT)]):
        with pytest.raises(UnknownTable):
            app.history("Nothing", rows).to_arrow()


def test_an_awaiting_app_has_frames_too(app: testing.VirtualApp) -> None:
    async def ask() -> tuple[Any, Any]:
        async with hr.AsyncApp(app.client.settings.url) as asked:
            past = await asked.history(Visits, pa.table(QUESTIONS), ["count"]).to_pandas()
            return past, (await asked.batch_get([(Users, "ada")])).to_polars()

    past, now = asyncio.run(ask())
    assert list(past["count"]) == [1, 1, pd.NA, pd.NA]
    assert now.to_dicts() == [{"user": "ada", "n": 1, "first_at": AT}]


MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))
EVENTS = st.fixed_dictionaries(
    {
        "user": st.sampled_from(["ada", "bob"]),
        "n": st.sampled_from([0, 1, -(2**63), 2**63 - 1]).map(np.int64),
        "at": st.none() | MOMENTS | MOMENTS.map(pd.Timestamp),
        "token": st.none() | st.binary(max_size=3),
        "amount": st.none() | st.floats(-100, 100).map(np.float64) | st.decimals(-9, 9, places=2).map(Decimal),
        "ok": st.none() | st.booleans().map(np.bool_),
    }
)


@pytest.fixture(scope="module")
def shared() -> Iterator[testing.VirtualApp]:
    with testing.app() as running:
        yield running


@given(events=st.lists(EVENTS, min_size=1, max_size=6))
def test_frames_equal_http(shared: testing.VirtualApp, events: list[dict[str, Any]]) -> None:
    shared.register(force=True)
    shared.register(Visits)
    shared.push_many(Seen, events)
    shared.clock.advance("1s")
    keys = [*sorted({(event["user"], int(event["n"])) for event in events}), ("nobody", 0)]
    question = features.batch_get([("Visits", key) for key in keys])
    answer = msgspec.json.decode(shared.client.send(question).body)["results"]
    types = shared.registry().types["Visits"].features
    rows = shared.batch_get([(Visits, key) for key in keys])
    assert [row.raw for row in rows] == answer
    assert list(rows) == [type_values(row, types) for row in answer]
    at = shared.clock.now_us() * 1000
    past = shared.history(Visits, [(key, at) for key in keys])
    assert list(past) == list(rows)
    names = list(types)
    tables = [rows.to_arrow().select(names), past.to_arrow().select(names)]
    assert tables[0].equals(tables[1])
    wanted = [{name: row.get(name) for name in names} for row in rows]
    for row in wanted:
        for name in ("buckets", "shares"):
            row[name] = None if row[name] is None else list(row[name].items())
    assert tables[0].to_pylist() == wanted
    flat = [name for name in names if name not in ("buckets", "shares", "top", "tokens")]
    assert rows.to_polars().select(flat).to_dicts() == [{name: row[name] for name in flat} for row in wanted]
    frame = rows.to_pandas()
    for name in flat:
        values = [None if pd.isna(value) else value for value in frame[name]]
        assert values == [row[name] for row in wanted]


def test_a_server_that_says_no_types_gives_raw_values() -> None:
    row = features.read_row(features.Answer(200, {}, b'{"at": "2026-01-01T00:00:00Z"}'))
    assert row == row.raw == {"at": "2026-01-01T00:00:00Z"}
    with pytest.raises(UnknownTable, match="there is no table T whose types the server says"):
        features.KeyRows([row], [("T", 1)], {}).to_arrow()
