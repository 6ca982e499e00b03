"""Features over a stream that is there already: its events are taken as they are, and stay its owner's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.engine.derive.generation import NotReady
from headrace.engine.features.feature_reader import UnfitEvents
from headrace.engine.features.source import SourceGone
from headrace.schema.update import SchemaUpdate
from headrace.types import JSON
from support.engine_rig import array
from support.feature_rig import Pipelines, event, op, table

FIELDS = {"user": {"type": "str", "pointer": "/user/id"}, "ms": "i64"}
AGG = {"n": op("count"), "total": op("sum", field="ms")}
USERS = table("Users", "Request", ["user"], AGG)


def source(fields: dict[str, Any] | None = None, stream: str = "requests", **facts: Any) -> dict[str, Any]:
    return event("Request", fields or FIELDS, stream=stream, **facts)


def request(user: Any, ms: Any, **more: Any) -> dict[str, Any]:
    return {"user": {"id": user, "name": "x"}, "ms": ms, "path": "/a", **more}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Pipelines]:
    with Pipelines(tmp_path, features={"fold_rows": 2}) as rig:
        rig.create("requests", JSON)
        yield rig


def unfit(rig: Pipelines) -> UnfitEvents:
    """The events that do not fit."""

    async def ask() -> UnfitEvents:
        reader = rig.engine.feature_reader
        while True:
            try:
                return reader.unfit("Request")
            except NotReady:
                await reader.ready("Request unfit")

    return rig.run(ask())


def append(rig: Pipelines, *events: Any, stream: str = "requests") -> None:
    rig.clock.us += 1_000_000
    rig.append(stream, array(*events))


def test_history_and_what_comes_later_count(rig: Pipelines) -> None:
    append(rig, request("a", 1), request("b", 2), request("a", 3))
    rig.register(source(), USERS)
    assert rig.get("Users", "a") == {"n": 2, "total": 4}
    append(rig, request("a", 10))
    assert rig.get("Users", "a") == {"n": 3, "total": 14}
    assert rig.get("Users", "b") == {"n": 1, "total": 2}
    assert rig.get("Users", "c") == {}


def test_history_in_segments_is_backfilled_by_workers(rig: Pipelines) -> None:
    append(rig, *(request("ab"[number % 2], number) for number in range(10)))
    rig.publish("requests")
    rig.register(source(), USERS)
    assert rig.work() > 0
    assert rig.states("Users")
    append(rig, request("a", 100))
    assert rig.answer("Users", "a")[:2] == ({"n": 6, "total": 120}, True)
    rig.reopen()
    assert rig.get("Users", "a") == {"n": 6, "total": 120}


def test_events_that_do_not_fit_are_left_out(rig: Pipelines) -> None:
    odd = [{"ms": 1}, request("a", "x"), request(None, 1), {"user": "a", "ms": 1}, 3, [1], request("a", 2**63)]
    reasons = ["/user/id is missing", "/ms is no i64", "/user/id is missing or null", "/user/id is missing"]
    append(rig, request("a", 1), *odd, request("a", 2.0))
    rig.register(source(), USERS)
    assert rig.get("Users", "a") == {"n": 2, "total": 3}
    first = unfit(rig)
    assert (first.events, first.complete) == (7, True)
    assert first.first[:4] == [*enumerate(reasons, 1)]
    rig.publish("requests")
    rig.work()
    append(rig, *odd, request("a", 3))
    rig.reopen()
    assert rig.get("Users", "a") == {"n": 3, "total": 6}
    again = unfit(rig)
    assert (again.events, again.first[:7], len(again.first), again.complete) == (14, first.first, 10, True)


def test_an_event_that_only_lacks_a_field_is_found_among_columns(rig: Pipelines) -> None:
    append(rig, request("a", 1), {"ms": 2}, request("a", 3))
    rig.publish("requests")
    rig.register(source(), USERS)
    rig.work()
    append(rig, {"user": {}, "ms": 2})
    assert rig.get("Users", "a") == {"n": 2, "total": 4}
    assert unfit(rig).first == [(1, "/user/id is missing or null"), (3, "/user/id is missing or null")]


def test_an_event_too_far_ahead_of_its_append_does_not_fit(rig: Pipelines) -> None:
    now_ms = rig.clock.us // 1000
    timed = source({**FIELDS, "at": "i64"}, timestamp_field="at", timestamp_unit="ms")
    append(rig, request("a", 1, at=now_ms), request("a", 2, at=now_ms + 62_000), request("a", 4, at=now_ms - 10**9))
    rig.register(timed, USERS)
    assert rig.get("Users", "a") == {"n": 2, "total": 5}
    assert [seq for seq, _ in unfit(rig).first] == [1]
    rig.publish("requests")
    rig.work()
    rig.reopen()
    assert rig.get("Users", "a") == {"n": 2, "total": 5}
    assert [seq for seq, _ in unfit(rig).first] == [1]


def test_two_sources_over_one_stream_decode_its_events_each_their_own_way(rig: Pipelines) -> None:
    paths = event("Path", {"path": "str", "ms": "f64"}, stream="requests")
    append(rig, request("a", 1), request("b", 2.5))
    rig.register(source(), USERS, paths, table("Paths", "Path", ["path"], AGG))
    append(rig, request("a", 3))
    assert rig.get("Users", "a") == {"n": 2, "total": 4}
    assert rig.get("Users", "b") == {}
    assert rig.get("Paths", "/a") == {"n": 3, "total": 6.5}
    rig.publish("requests")
    rig.work()
    append(rig, request("b", 4))
    assert rig.get("Users", "b") == {"n": 1, "total": 4}
    assert rig.get("Paths", "/a") == {"n": 4, "total": 10.5}


def refused(rig: Pipelines, *descriptors: dict[str, Any], **terms: Any) -> set[tuple[str, str]]:
    try:
        rig.register(*descriptors, **terms)
    except AssertionError as reason:
        return {(problem.code, problem.path) for problem in reason.args[0]}
    raise AssertionError("it is not refused")


def test_only_streams_of_json_that_belong_to_no_registry_of_entities_are_sources(rig: Pipelines) -> None:
    rig.create("bytes")
    for stream in ("entities/contact", "__headrace_details__", "bytes", "events/Request"):
        assert refused(rig, source(stream=stream)) == {("stream_not_supported", "descriptors[0].stream")}
    assert refused(rig, source(stream="nothing")) == {("unknown_stream", "descriptors[0].stream")}


def test_rows_of_a_deleted_stream_say_so_and_force_binds_to_the_new_one(rig: Pipelines) -> None:
    append(rig, request("a", 1))
    rig.register(source(), USERS)
    assert rig.get("Users", "a") == {"n": 1, "total": 1}
    rig.delete("requests")
    with pytest.raises(SourceGone):
        rig.get("Users", "a")
    rig.create("requests", JSON)
    append(rig, request("a", 7))
    with pytest.raises(SourceGone):
        rig.get("Users", "a")
    assert refused(rig, source(), USERS) == {("source_gone", "descriptors[0].stream")}
    rig.register(source(), USERS, force=True)
    assert rig.get("Users", "a") == {"n": 1, "total": 7}


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "user": {
            "type": "object",
            "properties": {"id": {"type": "string"}, "name": {"type": "string"}},
            "required": ["id", "name"],
            "additionalProperties": False,
        },
        "ms": {"type": "integer"},
        "path": {"type": "string"},
    },
    "required": ["user", "ms", "path"],
    "additionalProperties": False,
}


def without(schema: dict[str, Any], name: str) -> dict[str, Any]:
    kept = {each: shape for each, shape in schema["properties"].items() if each != name}
    return {**schema, "properties": kept, "required": [each for each in schema["required"] if each != name]}


def evolve(rig: Pipelines, schema: dict[str, Any], *ops: dict[str, Any], first: bool = False) -> list[dict[str, Any]]:
    """Change the schema of the stream; returns the impact that the plan names."""
    stream = rig.find("requests")
    version = 0 if stream.head.registry is None else stream.head.registry.version
    lens = {"apiVersion": "durable.lens/v1", "schema": "requests", "from": version, "to": version + 1, "ops": list(ops)}
    update = SchemaUpdate(schema=schema) if not version else SchemaUpdate(schema=schema, lens=lens)
    prove = rig.engine.first_schemas.prove if first else None
    update = msgspec.structs.replace(update, first_on_data=first)
    plan, _ = rig.run(rig.engine.schemas.apply(stream, update, "tests", prove))
    return [each.dump() for each in plan.impact]


def renamed() -> dict[str, Any]:
    moved = without(SCHEMA, "user")
    moved["properties"]["customer"] = SCHEMA["properties"]["user"]
    return {**moved, "required": [*moved["required"], "customer"]}


def test_a_rename_is_followed_and_state_is_kept(rig: Pipelines) -> None:
    evolve(rig, SCHEMA)
    append(rig, request("a", 1), request("b", 2))
    rig.publish("requests")
    rig.register(source(), USERS)
    rig.work()
    lives = rig.engine.feature_reader.defined("Users").lives
    append(rig, request("a", 3))
    assert rig.get("Users", "a") == {"n": 2, "total": 4}
    assert not evolve(rig, renamed(), {"op": "rename", "from": "/user", "to": "/customer"})
    append(rig, {"customer": {"id": "a", "name": "x"}, "ms": 5, "path": "/"})
    assert rig.answer("Users", "a")[:2] == ({"n": 3, "total": 9}, True)
    assert rig.engine.feature_reader.defined("Users").lives == lives
    rig.publish("requests")
    rig.work()
    rig.reopen()
    assert rig.get("Users", "a") == {"n": 3, "total": 9}
    # The pointer as it was registered and the one that it has moved to mean the same.
    moved = {"user": {"type": "str", "pointer": "/customer/id"}, "ms": "i64"}
    for fields in (FIELDS, moved):
        assert not rig.register(source(fields), USERS).changed
    assert rig.engine.feature_reader.defined("Users").lives == lives


def test_features_end_where_their_field_is_lost_and_others_go_on(rig: Pipelines) -> None:
    evolve(rig, SCHEMA)
    append(rig, request("a", 1), request("a", 2))
    rig.register(source(), USERS)
    assert rig.get("Users", "a") == {"n": 2, "total": 3}
    impact = evolve(
        rig, without(SCHEMA, "ms"), {"op": "remove", "path": "/ms", "schema": {"type": "integer"}, "default": 0}
    )
    assert [(each["subject"], each["effect"]) for each in impact] == [("/features/Users/total", "lost")]
    append(rig, {"user": {"id": "a", "name": "x"}, "path": "/"})
    for _ in range(2):
        answer = rig.answer("Users", "a", explain=True)
        assert (answer.row, answer.coverage) == ({"n": 3, "total": 3}, "ended")
        assert answer.explain["features"]["total"]["ended"] == rig.find("requests").offset_at(2)
        rig.publish("requests")
        rig.work()
        rig.reopen()


def test_features_of_a_converted_field_are_rebuilt_while_the_old_state_answers(rig: Pipelines) -> None:
    evolve(rig, SCHEMA)
    append(rig, *(request("a", number) for number in range(10)))
    rig.publish("requests")
    fields = {**FIELDS, "path": "str"}
    table_ = table("Users", "Request", ["user"], {**AGG, "paths": op("last", field="path")})
    rig.register(source(fields), table_)
    rig.work()
    assert rig.answer("Users", "a")[:2] == ({"n": 10, "total": 45, "paths": "/a"}, True)
    upper = {"op": "convert", "path": "/path", "fromType": "string", "toType": "string"}
    convert = {**upper, "forward": {"builtin": "uppercase"}, "backward": {"builtin": "lowercase"}}
    impact = evolve(rig, SCHEMA, convert)
    assert [(each["subject"], each["effect"]) for each in impact] == [("/features/Users/paths", "changed")]
    append(rig, request("a", 100, path="/B"))
    answer = rig.answer("Users", "a")
    assert (answer.row, answer.coverage) == ({"n": 11, "total": 145, "paths": "/a"}, "backfilling")
    rig.publish("requests")
    rig.work()
    answer = rig.answer("Users", "a")
    assert (answer.row, answer.coverage) == ({"n": 11, "total": 145, "paths": "/B"}, "complete")


def test_events_from_before_the_first_schema_count(rig: Pipelines) -> None:
    append(rig, *(request("a", number) for number in range(5)))
    rig.register(source(), USERS)
    evolve(rig, SCHEMA, first=True)
    append(rig, request("a", 5))
    evolve(rig, renamed(), {"op": "rename", "from": "/user", "to": "/customer"})
    append(rig, {"customer": {"id": "a", "name": "x"}, "ms": 6, "path": "/"})
    assert rig.get("Users", "a") == {"n": 7, "total": 21}
    rig.publish("requests")
    rig.register(source(), USERS, table("Others", "Request", ["user"], AGG))
    rig.work()
    assert rig.get("Others", "a") == {"n": 7, "total": 21}


def test_forks_have_their_own_life(rig: Pipelines) -> None:
    append(rig, request("a", 1), request("a", 2), request("a", 3))
    rig.register(source(), USERS)
    fork = rig.fork("requests", "forked", 2)
    append(rig, request("a", 10), stream="forked")
    assert rig.get("Users", "a") == {"n": 3, "total": 6}
    over_fork = event("Forked", FIELDS, stream="forked")
    rig.register(source(), USERS, over_fork, table("ForkUsers", "Forked", ["user"], AGG))
    assert rig.get("ForkUsers", "a") == {"n": 3, "total": 13}
    rig.publish(fork.name)
    rig.publish("requests")
    rig.work()
    append(rig, request("a", 20))
    rig.reopen()
    assert rig.get("ForkUsers", "a") == {"n": 3, "total": 13}
    assert rig.get("Users", "a") == {"n": 4, "total": 26}


def test_retention_of_the_stream_does_not_wait(rig: Pipelines) -> None:
    append(rig, request("a", 1), request("a", 2))
    rig.publish("requests")
    rig.register(source(), USERS)
    append(rig, request("a", 3))
    rig.publish("requests")
    rig.clock.us += 3_600_000_000
    rig.retain("requests", age_us=1_000_000)
    assert rig.find("requests").head.first_seq == 3
    append(rig, request("a", 4))
    rig.reopen()
    assert rig.get("Users", "a") == {"n": 1, "total": 4}


def test_the_server_backfills_by_itself(tmp_path: Path) -> None:
    with Pipelines(tmp_path, helps=True, features={"fold_rows": 2}) as rig:
        rig.create("requests", JSON)
        append(rig, *(request("ab"[number % 2], number) for number in range(10)))
        rig.publish("requests")
        rig.register(source(), USERS)
        assert rig.answer("Users", "a").coverage == "backfilling"

        async def pause() -> None:
            await asyncio.sleep(0.01)

        while not rig.answer("Users", "a").complete:
            rig.run(pause())
        assert rig.get("Users", "a") == {"n": 5, "total": 20}
        assert rig.states("Users")


def test_a_node_that_is_made_of_the_store_alone_answers_too(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"storage": {"object_store": str(tmp_path / "store")}, "features": {"fold_rows": 2}}
    with Pipelines(tmp_path / "first", **settings) as rig:
        rig.create("requests", JSON)
        append(rig, *(request("ab"[number % 2], number) for number in range(10)))
        rig.register(source(), USERS)
        rig.publish("requests")
        rig.work()
        rig.publish("requests")
        rig.run(rig.engine.sealer.publish_journals())
    with Pipelines(tmp_path / "second", **settings) as rig:
        assert rig.get("Users", "a") == {"n": 5, "total": 20}
        append(rig, *(request("a", 100) for _ in range(5)))
        rig.publish("requests")
        assert rig.work() > 0
        assert rig.get("Users", "a") == {"n": 10, "total": 520}
