"""The app that awaits, against a real server; it shares all but its shell with the blocking one."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

import headrace as hr
from headrace import errors, testing
from headrace.client.features import MAX_PUSHED_EVENTS


@hr.event
class Txn:
    user: str
    amount: float


@hr.table(key="user")
def Spending(txn: Annotated[hr.Rows, Txn]) -> Any:
    return txn.agg(n=hr.count(), total=hr.sum("amount"))


@pytest.fixture
def server() -> Iterator[testing.VirtualApp]:
    with testing.app() as app:
        yield app


def run(server: testing.VirtualApp, scene: Callable[[hr.AsyncApp], Awaitable[None]]) -> None:
    """Play a scene with an app of the server."""

    async def play() -> None:
        async with hr.AsyncApp(server.client.settings.url) as app:
            await scene(app)

    asyncio.run(play())


def test_rows_and_history_follow_what_was_pushed(server: testing.VirtualApp) -> None:
    async def scene(app: hr.AsyncApp) -> None:
        assert (await app.register(Spending)).added == ["Spending", "Txn"]
        pushed = await app.push(Txn, {"user": "ada", "amount": 3})
        assert pushed.registry_version == 1
        before = server.clock.now_us() * 1000
        server.clock.advance("1m")
        rows = [{"user": "ada", "amount": 1.0}] * (MAX_PUSHED_EVENTS + 1)
        assert len(await app.push_many(Txn, rows)) == len(rows)
        assert await app.get(Spending, "ada") == {"n": len(rows) + 1, "total": len(rows) + 3.0}
        explained = await app.get(Spending, "ada", explain=True)
        assert explained.explain is not None
        assert await app.batch_get([(Spending, "ada", ["n"]), (Spending, "bob")]) == [{"n": len(rows) + 1}, {}]
        past = [row async for row in app.history(Spending, [("ada", before), ("bob", before)], ["total"])]
        assert past == [{"total": 3.0}, {}]

    run(server, scene)


def test_the_registry_is_read_and_rolled_back(server: testing.VirtualApp) -> None:
    async def scene(app: hr.AsyncApp) -> None:
        await app.register(Txn)
        await app.register(Spending)
        assert (await app.registry()).apps == {"Spending": "default", "Txn": "default"}
        assert [version.added async for version in app.registry_history()] == [["Txn"], ["Spending"]]
        assert (await app.rollback(1, dry_run=True)).conflict
        assert (await app.rollback(1, force=True)).removed == ["Spending"]

    run(server, scene)


def test_refusals_are_the_errors_of_the_blocking_app(server: testing.VirtualApp) -> None:
    async def scene(app: hr.AsyncApp) -> None:
        await app.register(Spending)
        with pytest.raises(errors.MissingField):
            await app.push(Txn, {"user": "ada"})
        with pytest.raises(hr.PushRefused) as caught:
            await app.push_many(Txn, [{"user": "ada", "amount": 1.0}, {"user": "ada"}])
        assert list(caught.value.refusals) == [1]
        with pytest.raises(hr.RegistrationConflict):
            await app.register(Txn)

    run(server, scene)


def test_entities_are_stored_and_listed(server: testing.VirtualApp) -> None:
    async def scene(app: hr.AsyncApp) -> None:
        definition = {"fields": {"name": {"type": "string", "required": True}}, "canonical_name_fields": ["name"]}
        await app.entities.types.register("company", "1.0", definition, {"merge_policies": {}}, activate=True)
        assert [version.entity_type async for version in app.entities.types] == ["company"]
        stored = [
            part
            async for part in app.entities.store_many({"entity_type": "company", "name": name} for name in ("A", "B"))
        ]
        assert len(stored) == 1
        listed = [snapshot async for snapshot in app.entities.list("company")]
        assert [snapshot.snapshot["name"] for snapshot in listed] == ["A", "B"]
        await app.entities.delete(listed[0].entity_id)
        assert [snapshot.snapshot["name"] async for snapshot in app.entities.list("company")] == ["B"]
        assert (await app.entities.list("company").to_arrow())["name"].to_pylist() == ["B"]

    run(server, scene)


def test_an_embedded_server_ends_with_its_app(tmp_path: Path) -> None:
    async def play() -> None:
        async with await hr.AsyncApp.embedded(tmp_path) as app:
            await app.register(Spending)
            await app.push(Txn, {"user": "ada", "amount": 1.0})
            assert (await app.get(Spending, "ada"))["n"] == 1
        async with hr.AsyncApp(app.client.settings.url, retry_for=0) as late:
            with pytest.raises(hr.Unreachable):
                await late.registry()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("awaiting", "blocking"),
    [(hr.AsyncApp, hr.App), (hr.AsyncClient, hr.Client), (hr.AsyncStream, hr.Stream)],
)
def test_whatever_blocks_can_be_awaited(awaiting: type, blocking: type) -> None:
    def names(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}

    assert names(awaiting) == names(blocking)
