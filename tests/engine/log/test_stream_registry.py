"""Registries in the engine: changes and appends in one queue, what is kept in memory, and what is left on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.registries import change, evolve, read, registry, stored, stream_with, update, versions
from headrace.engine.log.append import Append
from headrace.engine.registry import schemas
from headrace.engine.registry.registry_change import CommitChange
from headrace.errors import BadRequest, Conflict, CorruptData, LensUnsound, NotFound, NotRepresentable, RegistryFull
from headrace.storage.database import connect
from headrace.types import JSON
from server.registries import TEXT, WHOLE, lens, rename, shape
from support.engine_rig import Rig, array

KEY = {"jsonPointer": "/k", "required": False}
DAY = 86_400_000_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


async def queued(rig: Rig, name: str, *steps: dict[str, Any] | bytes, **facts: Any) -> list[Any]:
    """Queue changes and appends without waiting for any: all are settled in one commit, in this order."""
    stream, settled, outcomes = rig.find(name), asyncio.Event(), []
    plans = [await rig.engine.schemas.prepare(stream, update(**step)) for step in steps if isinstance(step, dict)]

    def done(operation: Append | CommitChange) -> None:
        outcomes.append(operation)
        if len(outcomes) == len(steps):
            settled.set()

    before = rig.engine.writer.commits
    for step in steps:
        if isinstance(step, bytes):
            rig.append_to(stream, step, done, **facts)
        else:
            CommitChange(plans.pop(0), "me", done).submit(rig.engine.writer)
    await settled.wait()
    assert rig.engine.writer.commits == before + 1
    return outcomes


# -- appends and changes in one queue


def test_what_was_queued_before_a_change_belongs_to_the_version_before_it(rig: Rig) -> None:
    stream_with(rig, "s", shape(a=WHOLE))
    step = {"schema": shape(b=WHOLE), "lens": lens("s", 1, rename("a", "b"))}
    first, change, second = rig.run(queued(rig, "s", array({"a": 1}), step, array({"a": 2})))
    assert first.error is None and not change.outdated
    assert isinstance(second.error, BadRequest) and second.error.facts["failures"]
    assert versions(rig, "s") == [(0, 1, 1)]
    assert [(edge.offset, edge.version) for edge in registry(rig, "s").boundaries] == [(0, 1), (1, 2)]
    assert read(rig, "s") == [{"b": 1}]


def test_what_fits_both_versions_gets_the_one_it_was_committed_under(rig: Rig) -> None:
    stream_with(rig, "s", shape("a", a=WHOLE))
    step = {"schema": shape("a", "b", a=WHOLE, b=WHOLE)}
    outcomes = rig.run(queued(rig, "s", array({"a": 1}), step, array({"a": 2}, {}), array({})))
    assert [outcome.error for outcome in outcomes] == [None] * 4
    assert versions(rig, "s") == [(0, 1, 1), (1, 2, 2), (3, 1, 2)]


def test_what_one_registry_saw_to_fit_is_judged_by_the_next(rig: Rig) -> None:
    stream_with(rig, "s", shape(a=WHOLE))
    stream = rig.find("s")
    first = stream.head.registry
    assert first is not None and first.count(b'[{"a":1},{"a":2}]') == 2
    append = Append(stream, b'{"a":1},{"a":2}', 2, lambda _: None)
    append.validated_by = first
    first.admit(append)
    assert append.version == 1
    assert append.registry == first
    change(rig, "s", schema=shape(b=WHOLE), lens=lens("s", 1, rename("a", "b")))
    second = stream.head.registry
    assert second is not None and second.count(b'[{"a":1},{"a":2}]') is None
    with pytest.raises(BadRequest):
        second.admit(append)


def test_keys_are_taken_as_the_commit_finds_the_registry(rig: Rig) -> None:
    rig.create("s", JSON)
    step = {"routingKey": KEY}
    outcomes = rig.run(queued(rig, "s", array({"k": "a"}), step, array({"k": "b"}, {"k": "c"}), array({"k": 1})))
    assert [type(outcome.error) for outcome in outcomes] == [type(None), type(None), type(None), BadRequest]
    assert [read(rig, "s", key=key) for key in "abc"] == [[], [{"k": "b"}], [{"k": "c"}]]
    change(rig, "s", routingKey=None)
    first, _, second = rig.run(queued(rig, "s", array({"k": "d"}), {"routingKey": KEY}, array({"k": "d"}), key="head"))
    assert first.error is None and isinstance(second.error, BadRequest)
    assert second.error.facts["field"] == "Stream-Key"
    assert read(rig, "s", key="head") == [{"k": "d"}]


def test_keys_are_not_taken_from_events_once_that_was_cleared(rig: Rig) -> None:
    rig.create("s", JSON)
    change(rig, "s", routingKey=KEY)
    _, second = rig.run(queued(rig, "s", {"routingKey": None}, array({"k": "a"}, {"k": "b"})))
    assert second.error is None
    assert [read(rig, "s", key=key) for key in "ab"] == [[], []]
    assert read(rig, "s") == [{"k": "a"}, {"k": "b"}]


def test_a_change_that_was_planned_for_something_else_is_not_made(rig: Rig) -> None:
    stream_with(rig, "s", shape(a=WHOLE))
    wider, other = {"schema": shape("a", a=WHOLE)}, {"schema": {"type": "object"}}
    first, second = rig.run(queued(rig, "s", wider, other))
    assert first.outdated is False
    assert second.outdated is True
    assert registry(rig, "s").current_schema == wider["schema"]
    assert stored(rig) == 2


def test_the_first_schema_is_not_installed_behind_an_event(rig: Rig) -> None:
    rig.create("s", JSON)
    append, install = rig.run(queued(rig, "s", array("x"), {"schema": {"type": "object"}}))
    assert append.error is None and install.outdated
    assert registry(rig, "s").current_version == 0
    assert stored(rig) == 0
    with pytest.raises(BadRequest, match="empty stream"):
        change(rig, "s", schema={"type": "object"})


def test_a_change_that_was_overtaken_is_planned_again(rig: Rig) -> None:
    stream_with(rig, "s", shape(a=WHOLE))
    stream = rig.find("s")

    async def both() -> list[Any]:
        bodies = [{"routingKey": KEY}, {"schema": shape("a", a=WHOLE)}]
        return await asyncio.gather(*(rig.engine.schemas.apply(stream, update(**body)) for body in bodies))

    rig.run(both())
    found = registry(rig, "s")
    assert found.current_version == 2 and found.routing_key is not None
    assert [row.revision for row in rig.engine.schemas.history(stream)] == [1, 2, 3]


def test_a_change_that_was_overtaken_by_the_same_change_conflicts(rig: Rig) -> None:
    stream_with(rig, "s", shape(a=WHOLE))
    body = {"schema": shape(b=WHOLE), "lens": lens("s", 1, rename("a", "b"))}

    async def twice() -> list[Any]:
        both = (rig.engine.schemas.apply(rig.find("s"), update(**body)) for _ in range(2))
        return await asyncio.gather(*both, return_exceptions=True)

    kinds = {type(outcome) for outcome in rig.run(twice())}
    assert kinds == {tuple, Conflict}
    assert registry(rig, "s").current_version == 2


def test_a_stream_that_is_deleted_while_a_change_is_planned_does_not_come_back(rig: Rig) -> None:
    stream_with(rig, "s", shape(a=WHOLE))
    stream = rig.find("s")
    planned = rig.run(rig.engine.schemas.prepare(stream, update(schema=True)))
    rig.delete("s")
    with pytest.raises(NotFound):
        rig.settle(lambda done: CommitChange(planned, "me", done).submit(rig.engine.writer))
    rig.create("s", JSON, array("anything"))
    assert registry(rig, "s").current_version == 0


def test_a_stream_stays_one_object_while_a_change_of_it_is_planned(tmp_path: Path) -> None:
    with Rig(tmp_path, limits={"cached_streams": 1}) as rig:
        stream_with(rig, "s", shape(a=WHOLE))
        others = [f"other/{number}" for number in range(400)]
        for name in others:
            rig.create(name, JSON)

        async def crowded() -> None:
            changing = asyncio.create_task(rig.engine.schemas.apply(rig.find("s"), update(schema=shape("a", a=WHOLE))))
            await asyncio.sleep(0)
            for name in others:
                rig.find(name)
            rig.find("s")
            await changing

        rig.run(crowded())
        assert registry(rig, "s").current_version == 2
        rig.append("s", array({}))
        assert versions(rig, "s") == [(0, 1, 2)]


def test_a_refused_change_raises_every_reason(rig: Rig) -> None:
    stream_with(rig, "s", shape(a=WHOLE))
    with pytest.raises(LensUnsound) as unsound:
        evolve(rig, "s", shape(a=TEXT, b=WHOLE))
    assert {problem["event_pointer"] for problem in unsound.value.facts["problems"]} == {"/a", "/b"}
    with pytest.raises(Conflict):
        change(rig, "s", schema=shape(b=WHOLE), lens=lens("s", 2, rename("a", "b")))
    assert stored(rig) == 1


# -- in memory and on disk


def test_a_registry_survives_a_restart(rig: Rig) -> None:
    stream_with(rig, "s", shape(a=WHOLE), {"a": 1})
    evolve(rig, "s", shape(b=WHOLE), rename("a", "b"))
    change(rig, "s", routingKey=KEY)
    rig.append("s", array({"b": 2}))
    before, revision = registry(rig, "s"), rig.find("s").head.registry
    rig.reopen()
    again = rig.find("s").head.registry
    assert registry(rig, "s") == before
    assert revision is not None and again is not None and again.revision == revision.revision == 3
    assert read(rig, "s") == [{"b": 1}, {"b": 2}]
    assert read(rig, "s", version=1) == [{"a": 1}, {"a": 2}]
    with pytest.raises(BadRequest):
        rig.append("s", array({"a": 3}))
    evolve(rig, "s", shape(c=WHOLE), rename("b", "c"))
    assert [row.revision for row in rig.engine.schemas.history(rig.find("s"))] == [1, 2, 3, 4]


def test_streams_that_left_memory_come_back_with_their_registries(tmp_path: Path) -> None:
    with Rig(tmp_path, limits={"cached_streams": 1}) as rig:
        names = [f"s{number}" for number in range(200)]
        for name in names:
            stream_with(rig, name, shape(**{name: WHOLE}), {name: 1})
            evolve(rig, name, shape(b=WHOLE), rename(name, "b"))
        assert len(rig.engine.log.catalog) < 200
        for name in names:
            assert read(rig, name) == [{"b": 1}]
            assert read(rig, name, version=1) == [{name: 1}]


def test_the_registry_of_a_deleted_stream_is_swept_away(rig: Rig) -> None:
    stream_with(rig, "s", shape(a=WHOLE), {"a": 1})
    evolve(rig, "s", shape(b=WHOLE), rename("a", "b"))
    stream_with(rig, "other", shape(a=WHOLE), {"a": 1})
    assert stored(rig) == 3
    rig.delete("s")
    rig.sweep()
    assert stored(rig) == 1
    assert stored(rig, "garbage") == 0
    assert read(rig, "other") == [{"a": 1}]
    rig.clock.us += 400 * DAY
    rig.sweep()
    rig.reopen()
    assert stored(rig) == 1


def test_another_life_of_a_name_begins_without_a_registry(rig: Rig) -> None:
    stream_with(rig, "s", shape(a=WHOLE), {"a": 1})
    rig.delete("s")
    rig.create("s", JSON, array("anything"))
    assert registry(rig, "s").current_version == 0
    assert rig.find("s").head.registry is None
    rig.sweep()
    assert read(rig, "s") == ["anything"]
    assert stored(rig) == 0
    rig.reopen()
    assert read(rig, "s") == ["anything"]


def test_a_registry_that_was_tampered_with_is_said_to_be_broken(rig: Rig, tmp_path: Path) -> None:
    stream_with(rig, "s", shape(a=WHOLE), {"a": 1})
    evolve(rig, "s", shape(b=WHOLE), rename("a", "b"))
    rig.create("whole", JSON, array(1))
    rig.close()
    database = connect(tmp_path / "headrace.db", cache_bytes=1 << 20)
    database.execute("UPDATE registries SET document = json_remove(document, '$.lenses.1')")
    database.close()
    rig.__init__(tmp_path)  # type: ignore[misc]
    with pytest.raises(CorruptData, match="registry"):
        rig.find("s")
    assert read(rig, "whole") == [1]


def test_retention_takes_events_and_leaves_the_registry(rig: Rig) -> None:
    stream_with(rig, "s", shape(a=WHOLE), {"a": 1})
    evolve(rig, "s", shape(b=WHOLE), rename("a", "b"))
    rig.append("s", array({"b": 2}))
    rig.retain("s", size=7)
    stream = rig.find("s")
    assert stream.head.first_seq == 1
    assert registry(rig, "s").current_version == 2
    rig.retain("s", size=0)
    with pytest.raises(BadRequest, match="lens required"):
        change(rig, "s", schema=shape(c=WHOLE))


# -- reading in a version


def test_a_page_ends_before_what_has_no_form_in_the_version_asked_for(rig: Rig) -> None:
    stream_with(rig, "s", {"type": "integer", "maximum": 9}, 1, 2)
    change(rig, "s", schema=WHOLE)
    rig.append("s", array(3, 10, 4, 11, 12, 5))
    rig.append("s", array(6))
    stream, log = rig.find("s"), rig.engine.log
    seen, refused, position = [], [], 0
    while position < stream.head.next_seq:
        try:
            found = log.read(stream, stream.head, position, budget=1 << 20, version=1)
        except NotRepresentable as failure:
            refused.append(failure.facts["offset"])
            position += 1
            assert stream.offset_at(position) == refused[-1]
        else:
            seen += found.parts
            position = found.position
    assert b",".join(seen) == b"1,2,3,4,5,6"
    assert refused == [stream.offset_at(position) for position in (4, 6, 7)]


def _toggled(rig: Rig, number: int) -> None:
    change(rig, "s", routingKey={"jsonPointer": f"/key{number}", "required": False})


@pytest.mark.parametrize(("name", "limit"), [("MAX_REVISIONS", 3), ("MAX_HISTORY_BYTES", 700)])
def test_a_full_history_takes_no_further_change_and_nothing_else_suffers(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, name: str, limit: int
) -> None:
    rig.create("s", JSON)
    monkeypatch.setattr(schemas, name, limit)
    for number in range(3):
        _toggled(rig, number)
    before = registry(rig, "s")
    asked = update(routingKey={"jsonPointer": "/one/more", "required": False})
    planned = rig.run(rig.engine.schemas.plan(rig.find("s"), asked))
    assert [refusal.code for refusal in planned.refusals] == ["registry_full"]
    assert planned.registry == before
    with pytest.raises(RegistryFull) as refusal:
        _toggled(rig, 4)
    assert refusal.value.status == 409
    assert refusal.value.facts["problems"][0]["revisions"] == 3
    _toggled(rig, 2)  # what is already so is no change
    rig.append("s", array({"key2": "k"}))
    assert registry(rig, "s") == before
    assert len(rig.engine.schemas.history(rig.find("s"))) == 3
