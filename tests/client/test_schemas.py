"""Schemas from Python: the registry, its changes, and events in any version."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import headrace as hr
from headrace.client import schemas
from headrace.client.answers import Answer
from headrace.client.schemas import UNSET, Registry
from headrace.errors import BadRequest, HeadraceError, LensUnsound, NotRepresentable

if TYPE_CHECKING:
    from tests.conftest import ServerProcess

WHOLE = {"type": "integer"}


def shape(**members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": [*members], "additionalProperties": False}


def lens(name: str, *ops: dict[str, Any], start: int = 1) -> dict[str, Any]:
    return {"apiVersion": "durable.lens/v1", "schema": name, "from": start, "to": start + 1, "ops": list(ops)}


RENAME = {"op": "rename", "from": "/qty", "to": "/total"}


def renamed(client: hr.Client, name: str) -> hr.Stream:
    """A stream with an event before its member was renamed, and one after."""
    stream = client.stream(name)
    stream.create()
    stream.evolve(shape(qty=WHOLE))
    stream.append({"qty": 1})
    stream.evolve(shape(total=WHOLE), lens(name, RENAME))
    stream.append({"total": 2})
    return stream


@pytest.mark.parametrize(
    ("given", "body"),
    [
        ({"schema": True}, {"schema": True}),
        ({"schema": {}, "lens": {"ops": []}}, {"schema": {}, "lens": {"ops": []}}),
        ({"routing_key": None}, {"routingKey": None}),
        ({"search": None}, {"search": None}),
        ({}, {}),
    ],
)
def test_only_what_is_given_is_sent(given: dict[str, Any], body: dict[str, Any]) -> None:
    wanted: dict[str, Any] = {"schema": UNSET, "lens": None, "routing_key": UNSET, "search": UNSET, **given}
    request = schemas.evolve("a b", **wanted, dry_run=False)
    assert request.method == "POST"
    assert request.target == "/v1/stream/a%20b/_schema"
    assert msgspec.json.decode(request.body) == body
    assert schemas.evolve("x", **wanted, dry_run=True).target == "/v1/stream/x/_schema?dry_run=true"


def test_answer_that_is_no_plan_is_a_bad_answer() -> None:
    with pytest.raises(hr.BadAnswer):
        schemas.read_plan(Answer(200, {}, b'{"diff": {"subject": "x"}}'))
    with pytest.raises(hr.BadAnswer):
        Answer(200, {}, b"[]").decode(Registry)


def test_stream_without_a_schema_has_an_empty_registry(client: hr.Client, name: str) -> None:
    stream = client.stream(name)
    stream.create()
    registry = stream.schema()
    assert registry["schema"] == name
    assert registry["currentVersion"] == 0
    assert registry["schemas"] == {}
    assert stream.schema_history() == []


def test_dry_run_and_change_give_the_same_plan(client: hr.Client, name: str) -> None:
    stream = client.stream(name)
    stream.create()
    wanted: dict[str, Any] = {"routing_key": {"jsonPointer": "/user", "required": True}}
    planned = stream.evolve(shape(user={"type": "string"}), **wanted, dry_run=True)
    assert stream.schema()["currentVersion"] == 0
    assert stream.evolve(shape(user={"type": "string"}), **wanted) == planned
    assert stream.schema() == planned.registry
    assert planned.from_version == 0
    assert planned.to_version == 1
    assert planned.classification == "additive"


def test_harmless_change_needs_no_lens(client: hr.Client, name: str) -> None:
    stream = client.stream(name)
    stream.create()
    stream.evolve(shape(qty=WHOLE))
    done = stream.evolve(shape(qty={"type": "number"}))
    assert done.lens == {"document": lens(name), "written": True}
    assert done.classification == "widening"
    again = stream.evolve(shape(qty={"type": "number"}))
    assert again.changes == []
    assert again.to_version == 2


def test_refused_change_raises_and_a_dry_run_tells(client: hr.Client, name: str) -> None:
    stream = client.stream(name)
    stream.create()
    stream.evolve(shape(qty=WHOLE))
    with pytest.raises(LensUnsound) as refusal:
        stream.evolve(shape(total=WHOLE), lens(name))
    planned = stream.evolve(shape(total=WHOLE), lens(name), dry_run=True)
    assert planned.refusals == refusal.value.facts["problems"]
    assert {found["code"] for found in planned.refusals} == {"lens_unsound"}
    assert set(planned.refusals[0]["counter_example"]) == {"qty"}
    assert planned.registry["currentVersion"] == 1


def test_events_are_read_in_any_version(client: hr.Client, name: str) -> None:
    stream = renamed(client, name)
    assert [batch.items for batch in stream.read()] == [[{"total": 1}, {"total": 2}]]
    assert [batch.items for batch in stream.read(schema_version=2)] == [[{"total": 1}, {"total": 2}]]
    assert [batch.items for batch in stream.read(schema_version=1)] == [[{"qty": 1}, {"qty": 2}]]
    with pytest.raises(BadRequest, match="3"):
        list(stream.read(schema_version=3))


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_follower_keeps_its_version(client: hr.Client, name: str, live: Any) -> None:
    stream = renamed(client, name)
    seen: list[Any] = []
    for batch in stream.tail("-1", live=live, schema_version=1):
        seen += batch.items
        if len(seen) == 2:
            stream.append({"total": 3}, close=True)
    assert seen == [{"qty": 1}, {"qty": 2}, {"qty": 3}]


def test_event_that_cannot_go_back_is_named(client: hr.Client, name: str) -> None:
    stream = client.stream(name)
    stream.create()
    stream.evolve(shape(qty={"type": "integer", "maximum": 9}))
    stream.evolve(shape(qty=WHOLE))
    stream.append({"qty": 1})
    offset = stream.append({"qty": 10}).next_offset
    with pytest.raises(NotRepresentable) as refusal:
        list(stream.read(schema_version=1))
    assert refusal.value.facts["offset"] == offset


def test_history_has_every_revision(client: hr.Client, name: str) -> None:
    stream = renamed(client, name)
    stream.evolve(routing_key={"jsonPointer": "/total", "required": False})
    stream.evolve(routing_key=None)
    revisions = stream.schema_history()
    assert [found.revision for found in revisions] == [1, 2, 3, 4]
    assert [found.registry["currentVersion"] for found in revisions] == [1, 2, 2, 2]
    assert ["routingKey" in found.registry for found in revisions] == [False, False, True, False]
    assert revisions[-1].registry == stream.schema()
    assert [found.at for found in revisions] == sorted(found.at for found in revisions)


def test_async_client_does_the_same(server: ServerProcess, name: str) -> None:
    import asyncio

    async def main() -> None:
        async with hr.AsyncClient(server.url) as client:
            stream = client.stream(name)
            await stream.create()
            planned = await stream.evolve(shape(qty=WHOLE), dry_run=True)
            assert await stream.evolve(shape(qty=WHOLE)) == planned
            await stream.append({"qty": 1})
            done = await stream.evolve(shape(total=WHOLE), lens(name, RENAME))
            assert await stream.schema() == done.registry
            assert len(await stream.schema_history()) == 2
            assert [batch.items async for batch in stream.read()] == [[{"total": 1}]]
            assert [batch.items async for batch in stream.read(schema_version=1)] == [[{"qty": 1}]]
            await stream.append({"total": 2}, close=True)
            tailed = [item async for batch in stream.tail("-1", schema_version=1) for item in batch.items]
            assert tailed == [{"qty": 1}, {"qty": 2}]

    asyncio.run(main())


def test_a_stream_gets_a_profile_with_its_schema(client: hr.Client, name: str) -> None:
    stream = client.stream(name)
    stream.create()
    assert stream.profile() == {"kind": "generic"}
    plan = stream.plan_profile("evlog", {"redactKeys": ["PIN"]})
    assert plan.from_version == 0
    assert plan.to_version == 1
    assert plan.refusals == []
    assert stream.profile() == {"kind": "generic"}
    assert stream.set_profile("evlog", {"redactKeys": ["PIN"]}) == {"kind": "evlog", "redactKeys": ["pin"]}
    assert stream.profile() == {"kind": "evlog", "redactKeys": ["pin"]}
    assert "requests" in stream.schema()["search"]["rollups"]


def test_a_profile_that_cannot_be_is_refused(client: hr.Client, name: str) -> None:
    stream = client.stream(name)
    stream.create()
    stream.append({"n": 1})
    plan = stream.plan_profile("evlog")
    assert [refusal["pointer"] for refusal in plan.refusals] == ["/profile/kind"]
    with pytest.raises(HeadraceError, match="before appending data"):
        stream.set_profile("evlog")
    with pytest.raises(HeadraceError, match="kind"):
        stream.set_profile("diary")


def test_the_awaiting_client_does_the_same(server: ServerProcess, name: str) -> None:
    async def main() -> None:
        async with hr.AsyncClient(server.url) as client:
            stream = client.stream(name)
            await stream.create()
            plan = await stream.plan_profile("metrics")
            assert plan.to_version == 1
            assert await stream.set_profile("metrics") == {"kind": "metrics"}
            assert await stream.profile() == {"kind": "metrics"}

    asyncio.run(main())
