"""Tails: rows that are at hand or packed are the same, and whoever lags catches up, on the loop or in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.engine.derive.generation import NotReady
from headrace.engine.derive.state_reader import INLINE_ROWS
from headrace.reduce.features.events import EventShapes
from headrace.reduce.states.definition import EventRun
from headrace.reduce.states.fold import Fold
from headrace.schema.descriptor.nodes import Event, EventField
from headrace.schema.registry import Registry
from support.feature_rig import ORDERS, SPENT, USERS, Pipelines, op, table


@pytest.fixture
def pipelines(tmp_path: Path) -> Iterator[Pipelines]:
    """There is no memory for events that wait: they are folded, or waited for."""
    with Pipelines(tmp_path / "data", features={"tail_bytes": 0}) as opened:
        opened.register(ORDERS, USERS)
        yield opened


def order(user: str, amount: float = 1.0) -> dict[str, Any]:
    return {"user": user, "amount": amount}


def test_fewer_rows_are_at_hand_where_they_are_large(pipelines: Pipelines) -> None:
    wide = table("Wide", "Order", ["user"], {**SPENT, "last": op("last_n", field="amount", n=200)})
    pipelines.register(ORDERS, USERS, wide)
    defined = pipelines.engine.feature_reader.defined("Wide")
    bounded, unbounded = Fold(defined, 1000, hot_bytes=1 << 20), Fold(defined, 1000, hot_bytes=1 << 30)
    for number in range(40_000):
        event = order(f"u{number % 400}", float(number))
        for fold in (bounded, unbounded):
            fold.add(number, number, event)
    assert bounded.memory < 0.6 * unbounded.memory
    assert bounded.memory - bounded.packed_bytes < 1.5 * (1 << 20)
    for user in ("u0", "u7", "u399"):
        key = defined.reducer.key(user)
        rows = [fold.reducer.finish(fold.row(key), 40_000, ["n", "total", "last"]) for fold in (bounded, unbounded)]
        assert rows[0] == rows[1]
    before = unbounded.memory
    for _ in range(20):
        unbounded.cool()
    assert unbounded.memory < 0.6 * before


def test_rows_that_are_packed_are_those_that_are_at_hand(pipelines: Pipelines) -> None:
    wide = table("Wide", "Order", ["user"], {**SPENT, "last": op("last_n", field="amount", n=3)})
    pipelines.register(ORDERS, USERS, wide)
    defined, random = pipelines.engine.feature_reader.defined("Wide"), Random(1)
    small, large = Fold(defined, 2), Fold(defined, 1000)
    for seq in range(500):
        event = order(f"u{random.randrange(20)}", float(random.randrange(9)))
        small.add(seq, seq, event)
        large.add(seq, seq, event)
    reducer = defined.reducer
    for number in range(20):
        key = reducer.key(f"u{number}")
        assert reducer.finish(small.row(key), 500) == reducer.finish(large.row(key), 500) != {}
    assert small.row(reducer.key("nobody")) is None
    assert small.packed_bytes > 0 and large.packed_bytes == 0
    heir = large.adopted(defined)
    assert reducer.finish(heir.row(reducer.key("u3")), 500) == reducer.finish(small.row(reducer.key("u3")), 500)


def test_a_tail_that_is_far_behind_is_folded_in_a_thread(pipelines: Pipelines) -> None:
    assert pipelines.get("Users", "a") == {}
    pipelines.append("events/Order", b"[" + b",".join([b'{"user":"a","amount":1}'] * (3 * INLINE_ROWS)) + b"]")
    with pytest.raises(NotReady):
        pipelines.engine.feature_reader.get("Users", "a")
    assert pipelines.get("Users", "a") == {"n": 3 * INLINE_ROWS, "total": 3.0 * INLINE_ROWS}


def test_a_table_that_was_asked_is_folded_on_without_being_asked(pipelines: Pipelines) -> None:
    pipelines.get("Users", "a")
    for _ in range(600):
        pipelines.push("Order", order("a"))

    async def settled() -> int:
        async with asyncio.timeout(10):
            while (tail := pipelines.engine.feature_reader.tail_of("Users")) is None or tail.position < 600:
                await asyncio.sleep(0.01)
        return tail.position

    assert pipelines.run(settled()) == 600


def test_a_tail_goes_on_over_events_that_were_sealed_meanwhile(pipelines: Pipelines) -> None:
    pipelines.push("Order", order("a"))
    assert pipelines.get("Users", "a")["n"] == 1
    for _ in range(5):
        pipelines.push("Order", order("a"))
    pipelines.seal("Order")
    pipelines.push("Order", order("a"))
    assert pipelines.get("Users", "a") == {"n": 7, "total": 7.0}


def test_many_questions_at_once_are_answered_alike(pipelines: Pipelines) -> None:
    pipelines.append("events/Order", b"[" + b",".join([b'{"user":"a","amount":1}'] * (3 * INLINE_ROWS)) + b"]")

    async def ask() -> dict[str, Any]:
        while True:
            try:
                return pipelines.engine.feature_reader.get("Users", "a").row
            except NotReady:
                await pipelines.engine.feature_reader.ready("Users")

    async def all_at_once() -> list[dict[str, Any]]:
        return await asyncio.gather(*(ask() for _ in range(20)))

    assert pipelines.run(all_at_once()) == [{"n": 3 * INLINE_ROWS, "total": 3.0 * INLINE_ROWS}] * 20


def test_a_fold_that_has_just_ended_is_not_waited_for_again(pipelines: Pipelines) -> None:
    """The moment after its last step, before anybody is told that it is done."""
    serving, many = (
        pipelines.engine.feature_reader,
        b"[" + b",".join([b'{"user":"a","amount":1}'] * (2 * INLINE_ROWS)) + b"]",
    )
    pipelines.get("Users", "a")
    pipelines.append("events/Order", many)

    async def ask() -> dict[str, Any]:
        more = threading.Event()
        aside = asyncio.create_task(serving.builder.run_in_thread(more.wait))
        first = asyncio.create_task(serving.ready("Users"))
        while not serving._folding:
            await asyncio.sleep(0)
        [folding] = serving._folding.values()
        pipelines.submit("events/Order", many, lambda _: more.set())
        while not folding.done():
            await asyncio.sleep(0)
        await serving.ready("Users")
        row = serving.get("Users", "a").row
        await asyncio.gather(aside, first)
        return row

    assert pipelines.run(ask()) == {"n": 4 * INLINE_ROWS, "total": 4.0 * INLINE_ROWS}


def test_events_get_the_fields_that_they_leave_out() -> None:
    fields = {
        "user": EventField("str"),
        "note": EventField("str", required=False),
        "grade": EventField("i64", default=0),
    }
    shapes = EventShapes(Registry.empty("events/E"), Event("E", fields))
    told = EventRun(7, 0, [1_500, 2_500], b'{"user":"a","note":"x","grade":3},{"user":"b"}')
    assert list(shapes.decode_run(told)) == [
        (7, 1, {"user": "a", "note": "x", "grade": 3}),
        (8, 2, {"user": "b", "note": None, "grade": 0}),
    ]
