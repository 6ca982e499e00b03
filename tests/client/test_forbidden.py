"""What cannot be declared: there are no words for it, or the words are refused before or by the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headrace as hr
from headrace import testing


@hr.event
class Txn:
    user: str
    amount: float
    ok: bool


@hr.table(key="user")
def Users(txn: Txn):  # type: ignore[no-untyped-def]
    return txn.agg(n=hr.count())


TXN: Any = Txn


@pytest.mark.parametrize(
    ("on", "name"),
    [
        *((TXN, name) for name in ("join", "union")),
        *((TXN.group_by("user"), name) for name in ("filter", "select", "with_columns", "group_by")),
        *((TXN.agg(n=hr.count()), name) for name in ("filter", "group_by", "agg")),
        *((Users, name) for name in ("filter", "agg")),
        *((hr.App, name) for name in ("upsert", "delete", "retract")),
        (hr, "fork"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_there_is_no_word_for_it(on: Any, name: str) -> None:
    assert not hasattr(on, name)


def over_table() -> None:
    @hr.table(key="user")
    def Over(users: Users):  # type: ignore[no-untyped-def, valid-type]
        return users.agg(n=hr.count())


def of_class() -> None:
    @hr.table(key="user")
    class Wrong:
        user: str
        n: int


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: hr.sum(hr.col("amount") * 2), "compute it with with_columns first"),  # type: ignore[arg-type]
        (lambda: hr.sum(hr.col("amount").cast(int)), "compute it with with_columns first"),  # type: ignore[arg-type]
        (lambda: hr.event(event_time_field="at"), "event_time_field"),  # type: ignore[call-overload]
        (lambda: hr.event(tolerate_delay="1s"), "tolerate_delay"),  # type: ignore[call-overload]
        (lambda: hr.count(session_gap="5m"), "session_gap"),  # type: ignore[call-arg]
        (over_table, "annotate users with the event it stands for"),
        (of_class, "Wrong is a class: a table is a function"),
    ],
    ids=["expression", "cast", "event time", "delay", "session", "table over table", "class"],
)
def test_it_is_refused_before_it_is_sent(declare: Callable[[], Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        declare()


@hr.event
class Timed:
    event_time: int


def counted(feature: hr.Feature) -> hr.Table:
    @hr.table(key="user")
    def Counted() -> Any:
        return TXN.agg(f=feature)

    return Counted


def nested(levels: int) -> hr.Expression:
    condition = hr.col("ok")
    for _ in range(levels):
        condition = ~condition
    return condition


@pytest.fixture(scope="module")
def app() -> Iterator[testing.VirtualApp]:
    with testing.app() as app:
        yield app


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("declared", "code"),
    [
        (Timed, "unknown_field_event_time_v0"),
        (counted(hr.ewma("amount", half_life="forever")), "aggregation_invalid_half_life"),
        (counted(hr.count(where=nested(513))), "invalid_expression"),
        ({"kind": "upsert", "name": "Users"}, "unsupported_node_kind"),
    ],
    ids=["event time", "half-life", "nesting", "upsert"],
)
def test_it_is_refused_by_the_server(app: testing.VirtualApp, declared: Any, code: str, force: bool) -> None:
    with pytest.raises(hr.RegistrationInvalid) as refused:
        app.register(declared, force=force)
    assert [problem.code for problem in refused.value.errors] == [code]
    assert app.registry().registry_version == 0
