"""Classes and functions become descriptors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Optional

import pytest

import headrace as hr
from headrace.client.declared import collect_descriptors


@hr.event(keep_events_for="30d", cold_after=timedelta(days=1), dedupe_key="id", dedupe_window="1h")
class Txn:
    id: str
    user: str
    amount: float
    items: int = 1
    card: bool
    receipt: bytes | None
    paid: Optional[datetime] = None  # noqa: UP045
    note: str | None = "none"


@hr.event
def Large(txn: Txn):  # type: ignore[no-untyped-def]
    return txn.filter(hr.col("amount") > 100).rename(amount="spent")


@hr.table(key="user")
def Spending(large: Large):  # type: ignore[no-untyped-def, valid-type]
    return large.with_columns(cents=hr.col("spent") * 100).agg(n=hr.count(window="1h"), total=hr.sum("cents"))


def test_a_class_is_an_event_source() -> None:
    assert isinstance(Txn, hr.Event)
    assert Txn.descriptor() == {
        "kind": "event",
        "name": "Txn",
        "schema": {
            "id": "str",
            "user": "str",
            "amount": "f64",
            "items": {"type": "i64", "required": True, "default": 1},
            "card": "bool",
            "receipt": {"type": "bytes", "required": False},
            "paid": {"type": "datetime", "required": False},
            "note": {"type": "str", "required": False, "default": "none"},
        },
        "keep_events_for": "30d",
        "cold_after": "86400s",
        "dedupe_key": "id",
        "dedupe_window": "1h",
    }


class Refund(hr.Event, dedupe_key="id", dedupe_window=timedelta(hours=1)):
    id: str
    user: str
    name: str | None
    steps: int = 1
    map: str = "none"  # type: ignore[assignment]


class Chargeback(Refund, keep_events_for="1d"):
    reason: str


def test_a_class_that_derives_from_event_is_an_event_source() -> None:
    fields = {
        "id": "str",
        "user": "str",
        "name": {"type": "str", "required": False},
        "steps": {"type": "i64", "required": True, "default": 1},
        "map": {"type": "str", "required": True, "default": "none"},
    }
    settings = {"dedupe_key": "id", "dedupe_window": "3600s"}
    refund = {"kind": "event", "name": "Refund", "schema": fields, **settings}
    chargeback = {"kind": "event", "name": "Chargeback", "schema": {**fields, "reason": "str"}, "keep_events_for": "1d"}
    assert collect_descriptors([Refund, Chargeback]) == [refund, chargeback]


def test_rows_of_such_a_class_have_their_methods_whatever_its_fields_are_named() -> None:
    @hr.event
    def Named(refund: Refund) -> hr.Rows:
        return hr.Rows.map(refund, twice="steps * 2").filter("name != null")

    @hr.table(key="user")
    def Refunds() -> hr.Aggregated:
        return Named.agg(n=hr.count())

    @hr.table(key="user")
    def Annotations(rows: Annotated[hr.Rows, Refund]) -> hr.Aggregated:
        return rows.map(twice="steps * 2").agg(n=hr.count())

    collected = collect_descriptors([Refunds, Annotations])
    assert [descriptor["name"] for descriptor in collected] == ["Refund", "Named", "Refunds", "Annotations"]
    assert collected[3]["ops"] == [{"op": "with_columns", "exprs": {"twice": "steps * 2"}}]


def test_a_class_of_a_local_scope_may_use_names_around_it() -> None:
    class Kind(str):
        pass

    with pytest.raises(TypeError, match=r"Odd\.kind: Kind is not a type of fields"):

        class Odd(hr.Event):
            kind: Kind


def test_an_unknown_setting_is_refused_with_the_one_that_is_meant() -> None:
    with pytest.raises(TypeError, match="did you mean 'dedupe_key'"):

        class Odd(hr.Event, dedupe_kye="id"):  # type: ignore[call-arg]
            id: str

    with pytest.raises(TypeError, match="did you mean 'cold_after'"):
        hr.event(cold_aftr="1h")  # type: ignore[call-overload]


def test_a_class_that_derives_from_event_needs_no_decorator() -> None:
    with pytest.raises(TypeError, match=r"leave out @hr\.event"):
        hr.event(Refund)


def test_the_base_itself_declares_nothing() -> None:
    with pytest.raises(TypeError, match="cannot be registered"):
        collect_descriptors([hr.Event])


def test_a_function_of_rows_is_a_derived_event() -> None:
    assert Large.descriptor() == {
        "kind": "derivation",
        "name": "Large",
        "upstreams": ["Txn"],
        "output_kind": "event",
        "ops": [
            {"op": "filter", "expr": "(amount > 100)"},
            {"op": "rename", "mapping": {"amount": "spent"}},
        ],
    }


def test_a_function_that_ends_in_agg_is_a_table() -> None:
    assert Spending.descriptor() == {
        "kind": "table",
        "name": "Spending",
        "key": ["user"],
        "upstreams": ["Large"],
        "ops": [{"op": "with_columns", "exprs": {"cents": "(spent * 100)"}}],
        "agg": {
            "n": {"op": "count", "params": {"window": "1h"}},
            "total": {"op": "sum", "params": {"field": "cents"}},
        },
    }


def test_every_step_has_its_words() -> None:
    rows = (
        Large.select("user", "spent", "items")
        .drop("items")
        .map(twice="spent + spent")
        .cast(spent=int, twice="str")
        .fillna(spent=0)
    )
    assert hr.event(lambda: rows).descriptor()["ops"] == [
        {"op": "select", "fields": ["user", "spent", "items"]},
        {"op": "drop", "fields": ["items"]},
        {"op": "with_columns", "exprs": {"twice": "spent + spent"}},
        {"op": "cast", "type_map": {"spent": "int", "twice": "str"}},
        {"op": "fillna", "defaults": {"spent": 0}},
    ]


def test_a_table_without_key_is_global() -> None:
    @hr.table
    def All(txn: Txn):  # type: ignore[no-untyped-def]
        return txn.agg(n=hr.count())

    assert All.descriptor()["key"] == []


@pytest.mark.parametrize("key", [("user", "card"), ["user", "card"], None])
def test_a_key_may_be_in_the_decorator_or_in_group_by(key: Any) -> None:
    @hr.table(key=key)
    def ByCard(txn: Annotated[hr.Rows, Txn]) -> Any:
        return txn.group_by("user", "card").agg(n=hr.count())

    assert ByCard.key == ("user", "card")


def test_two_keys_are_refused() -> None:
    with pytest.raises(TypeError, match=r"ByUser has the key \('user',\), and groups by \('card',\)"):

        @hr.table(key="user")
        def ByUser(txn: Txn):  # type: ignore[no-untyped-def]
            return txn.group_by("card").agg(n=hr.count())


def test_a_function_without_parameters_may_name_its_rows() -> None:
    @hr.table(key="user")
    def ByUser() -> Any:
        return Large.agg(n=hr.count())

    assert ByUser.descriptor()["upstreams"] == ["Large"]


def test_upstreams_come_along_once_and_first() -> None:
    names = [
        found["name"] for found in collect_descriptors([Spending, Large, {"kind": "event", "name": "Other"}, Spending])
    ]
    assert names == ["Txn", "Large", "Spending", "Other"]


def test_rows_without_a_name_cannot_be_registered() -> None:
    with pytest.raises(TypeError, match=r"declare it with @hr\.event"):
        collect_descriptors([Txn.filter("true")])  # type: ignore[attr-defined]


class Place:
    """A base that is no event itself."""

    version: ClassVar[int] = 3
    lat: float

    def near(self) -> bool:
        return True


def test_fields_of_bases_count_and_methods_do_not() -> None:
    @hr.event
    class Visit(Place):
        at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
        token: bytes = b"\x00\xff"

    assert Visit.descriptor()["schema"] == {  # type: ignore[attr-defined]
        "lat": "f64",
        "at": {"type": "datetime", "required": True, "default": "2026-01-01T00:00:00Z"},
        "token": {"type": "bytes", "required": True, "default": "AP8="},
    }


@pytest.mark.parametrize(
    ("annotation", "named"),
    [(list[str], r"list\[str\]"), (complex, "complex"), (dict, "dict"), (str | int, r"str \| int"), (Any, "Any")],
)
def test_a_type_that_no_field_has_is_named(annotation: Any, named: str) -> None:
    with pytest.raises(TypeError, match=rf"Odd\.what: .*{named} is not a type of fields"):
        hr.event(type("Odd", (), {"__annotations__": {"what": annotation}}))


def test_a_name_that_does_not_exist_is_named() -> None:
    with pytest.raises(TypeError, match="Odd: name 'Missing' is not defined"):
        hr.event(type("Odd", (), {"__annotations__": {"what": "Missing"}}))


@pytest.mark.parametrize(("hint", "default"), [(int, 1.5), (int, True), (str, 1), (float, "1"), (bool, 0), (int, None)])
def test_a_default_of_another_type_is_refused(hint: type, default: Any) -> None:
    with pytest.raises(TypeError, match=r"Odd\.x: the default .* is not of type"):
        hr.event(type("Odd", (), {"__annotations__": {"x": hint}, "x": default}))


def test_a_whole_number_is_a_default_of_a_float() -> None:
    made = hr.event(type("Fine", (), {"__annotations__": {"x": float}, "x": 1}))
    assert made.descriptor()["schema"]["x"]["default"] == 1


def test_a_field_without_type_is_not_left_out_in_silence() -> None:
    with pytest.raises(TypeError, match=r"Odd\.limit has no type; write limit: int = 3"):

        @hr.event
        class Odd:
            user: str
            limit = 3


def test_settings_belong_to_sources() -> None:
    with pytest.raises(TypeError, match="cold_after belong to the event it is made of"):

        @hr.event(cold_after="1h")
        def Derived(txn: Txn):  # type: ignore[no-untyped-def]
            return txn


def test_a_join_is_refused() -> None:
    with pytest.raises(TypeError, match="Joined has 2 parameters"):

        @hr.event
        def Joined(txn: Txn, large: Large):  # type: ignore[no-untyped-def, valid-type]
            return txn


def test_a_parameter_without_event_is_refused() -> None:
    with pytest.raises(TypeError, match="annotate txn with the event it stands for"):

        @hr.event
        def Odd(txn):  # type: ignore[no-untyped-def]
            return txn


@pytest.mark.parametrize(("decorator", "match"), [(hr.event, "must return rows"), (hr.table, r"must end in \.agg")])
def test_a_function_that_returns_something_else_is_refused(decorator: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):

        @decorator
        def Odd(txn: Txn):  # type: ignore[no-untyped-def]
            return 3


@pytest.mark.parametrize("features", [{}, {"n": 3}, {"n": hr.col("user")}])
def test_agg_takes_features_and_nothing_else(features: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"agg|not a feature"):
        Large.agg(**features)


def test_null_does_not_stand_for_null() -> None:
    with pytest.raises(ValueError, match="null cannot stand in place of null: user"):
        Large.fillna(user=None)  # type: ignore[arg-type]


def test_an_event_names_the_field_of_its_event_time() -> None:
    @hr.event(timestamp_field="at", late_after=timedelta(hours=1))
    class Visit:
        at: datetime

    class Reading(hr.Event, timestamp_field="at", timestamp_unit="ms"):
        at: int

    visit, reading = collect_descriptors([Visit, Reading])
    assert (visit["timestamp_field"], visit["late_after"]) == ("at", "3600s")
    assert (reading["timestamp_field"], reading["timestamp_unit"]) == ("at", "ms")


def test_an_event_names_the_stream_that_has_it() -> None:
    @hr.event(stream="shop/orders")
    class Order:
        id: str

    class Visit(hr.Event):
        id: str

    order, visit = collect_descriptors([Order, Visit])
    assert order["stream"] == "shop/orders" and "stream" not in visit
